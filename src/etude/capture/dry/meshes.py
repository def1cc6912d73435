"""Meshes of ranks: tensors with numbers, which decide who talks with whom; and each made once.

PyTorch makes a mesh for every weight that is sharded over two dimensions, each with the numbers of all ranks, and
compares these number by number. Of equal parts one mesh stands for all.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

_NO_NUMBERS = frozenset(("get_coordinate", "_is_current_rank_part_of_mesh", "_get_root_mesh", "_hash_key"))
"""Functions of a mesh that read what it has, and no tensor."""


def real_meshes(real: Any) -> None:
    """`real`: a context in which tensors have numbers."""
    module: Any = import_module("torch.distributed.device_mesh")
    mesh = module.DeviceMesh
    for name, function in list(vars(mesh).items()):
        if inspect.isfunction(function) and name not in ("__eq__", "__hash__", "__repr__", *_NO_NUMBERS):
            setattr(mesh, name, _within(real, function))
    mesh.__getitem__ = _once(mesh.__getitem__, lambda of, names: (of, names))
    joined = getattr(mesh, "_concatenate", None)
    if joined is not None:
        mesh._concatenate = staticmethod(_once(joined, tuple))
    original = module.init_device_mesh
    made = _within(real, original)
    for name, owner in list(sys.modules.items()):  # `fully_shard` without a mesh has taken the name into its own file
        if name.startswith("torch.distributed") and vars(owner).get("init_device_mesh") is original:
            owner.init_device_mesh = made  # type: ignore[attr-defined]


def _within(real: Any, function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        with real():
            return function(*args, **named)

    return call


def _once(function: Callable[..., Any], parts: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """The same, with what was made of these parts before; a mesh is known by what it is, not by its numbers."""
    known: dict[Any, tuple[Any, Any]] = {}

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        given = parts(*args)
        key = tuple(one if isinstance(one, (str, tuple)) else id(one) for one in given)
        if key not in known:
            known[key] = given, function(*args)  # what is given stays, and so does its id
        return known[key][1]

    return call
