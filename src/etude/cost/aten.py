"""PyTorch operators as work: FLOPs and bytes from the shapes and types that a trace recorded."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from etude.cost.aten_families import FAMILIES
from etude.cost.aten_inputs import Inputs, first_dtype, listed, shapes_of_argument, tensor_types
from etude.cost.aten_matrix import CAUSAL, mask_of
from etude.cost.ops import Work


def needs_values(name: str) -> bool:
    """Whether an operator's work depends on the values of its arguments, not only on their shapes."""
    return name in CAUSAL or "conv" in name


def causal_known(name: str, in_values: str) -> bool:
    """Whether an attention's arguments say if it is causal."""
    return mask_of(name, listed(in_values)) is not None


@lru_cache(maxsize=1 << 14)
def aten_work(name: str, in_shapes: str, in_types: str, in_values: str = "", *, causal: bool | None = None) -> Work:
    """The work of an operator; of class NONE with nothing known if its name or its shapes are not enough. `causal`:
    whether attention is causal, if its arguments do not say."""
    family = FAMILIES.get(name)
    shapes = listed(in_shapes) if family else []
    if family is None or not shapes:
        return Work()
    types = [tensor_types(text) for text in listed(in_types)]
    dtype = first_dtype(types)
    tensors = [shapes_of_argument(shape, types[i] if i < len(types) else []) for i, shape in enumerate(shapes)]
    types += [[]] * (len(tensors) - len(types))
    inputs = Inputs(tensors, types, listed(in_values), dtype or "fp32", causal)
    try:
        work = family(inputs)
    except (ValueError, IndexError, TypeError):  # fewer or other dimensions than the family has
        return Work()
    return work if dtype else replace(work, size_bytes=Work().size_bytes, dtype="")
