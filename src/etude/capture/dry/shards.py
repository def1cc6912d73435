"""Parts of a weight that `fully_shard` cuts: of thousands it takes one, and only that one is made."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any


class Shards(Sequence[Any]):
    """Parts of a tensor along a dimension as `torch.chunk` cuts them, with empty ones after the last."""

    def __init__(self, tensor: Any, parts: int, dim: int) -> None:
        self._tensor, self._parts, self._dim = tensor, parts, dim
        self._rows = tensor.size(dim)
        self._each = max(-(-self._rows // parts), 1)

    def __len__(self) -> int:
        return self._parts

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(self._parts))]
        place = range(self._parts)[place]
        first = place * self._each
        if first >= self._rows and place:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, first, min(self._each, self._rows - first))


def make_shards_when_asked() -> None:
    """`fully_shard` gets such parts in place of a list of all."""
    module: Any = import_module("torch.distributed.fsdp._fully_shard._fsdp_param")
    module._chunk_with_empty = Shards
