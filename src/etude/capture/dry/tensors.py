"""Tensors among the arguments of an operator."""

from typing import Any


def tensors_in(value: Any, tensor: Any) -> list[Any]:
    """The tensors in a value: itself, or those of its lists."""
    if isinstance(value, tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [found for item in value for found in tensors_in(item, tensor)]
    return []
