"""Parts of a weight that `fully_shard` cuts. Of thousands it takes one, and only that one is made; where their size
changes is written down, since ranks do different things there."""

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

    def cuts(self) -> set[int]:
        """The parts whose size is not that of the one before: one that is smaller, the first empty one."""
        whole, rest = divmod(self._rows, self._each)
        return {place for place in (whole, whole + (rest > 0)) if 0 < place < self._parts}


class ShardCuts:
    """Where shards of a program's weights change their size, by the members of the group that has them."""

    def __init__(self, torch: Any) -> None:
        self.found: dict[tuple[int, ...], set[int]] = {}
        module: Any = import_module("torch.distributed.fsdp._fully_shard._fsdp_param")
        original, members = module.FSDPParam._init_sharded_param, torch.distributed.get_process_group_ranks
        sharded: list[Any] = []

        def shards(tensor: Any, parts: int, dim: int) -> Shards:
            made = Shards(tensor, parts, dim)
            if sharded and made.cuts():  # its mesh is known by now, and was not when it began
                group = sharded[-1].mesh_info.shard_process_group
                self.found.setdefault(tuple(members(group)), set()).update(made.cuts())
            return made

        def shard(weight: Any, *args: Any, **named: Any) -> Any:
            sharded.append(weight)
            try:
                return original(weight, *args, **named)
            finally:
                sharded.pop()

        module._chunk_with_empty, module.FSDPParam._init_sharded_param = shards, shard

    def written(self) -> list[dict[str, Any]]:
        return [{"members": list(members), "places": sorted(places)} for members, places in self.found.items()]
