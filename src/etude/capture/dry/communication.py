"""Calls of `torch.distributed` as the dispatcher sees them: of the classes in C++ and of functional collectives."""

from dataclasses import dataclass
from typing import Any

from etude.capture.dry.tensors import tensors_in

KINDS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "gather_": "gather",
    "scatter_": "scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "barrier": "barrier",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
}
"""Operators of `c10d` and of `_c10d_functional`, and what they do."""


@dataclass(frozen=True, slots=True)
class Communication:
    """One call. Bytes are those of this rank; `peer` and `root` are ranks of the world."""

    kind: str
    group: str = ""
    members: tuple[int, ...] | list[int] = ()
    in_bytes: int = 0
    out_bytes: int = 0
    peer: int | None = None
    root: int | None = None
    tag: int = 0
    reads: tuple[Any, ...] = ()
    writes: tuple[Any, ...] = ()
    waits_only: bool = False
    reduction: str = ""
    """What a functional collective reduces by, such as `SUM`; others do not say it here."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "group": self.group,
            "in_bytes": self.in_bytes,
            "out_bytes": self.out_bytes,
            "peer": self.peer,
            "root": self.root,
            "tag": self.tag,
        }


def communication_of(torch: Any, function: Any, args: Any, kwargs: Any, result: Any) -> Communication | None:
    """The communication that an operator is, or None."""
    space, _, name = function._schema.name.partition("::")
    if space not in ("c10d", "_c10d_functional"):
        return None
    if name.startswith("wait_tensor"):
        return Communication("wait", reads=(args[0],), waits_only=True)
    kind = KINDS.get(name)
    if kind is None:
        raise NotImplementedError(f"the communication `{function._schema.name}` is not known to a dry run")
    named = {a.name: value for a, value in zip(function._schema.arguments, args, strict=False)} | dict(kwargs)
    group = _group(torch, named)
    members = [int(rank) for rank in torch.distributed.get_process_group_ranks(group)]
    reads, writes = _sides(torch, kind, named)
    if name in ("_allgather_base_", "_reduce_scatter_base_"):
        _check_sizes(kind, reads[0].numel(), writes[0].numel(), len(members))
    reduction = named.get("reduce_op")
    if space == "_c10d_functional":
        writes = tensors_in(result, torch.Tensor)
    return Communication(
        kind,
        str(group.group_name),
        members,
        _bytes(reads),
        _bytes(writes),
        peer=_member(members, named.get("dst", named.get("src"))) if kind in ("send", "recv") else None,
        root=_member(members, named.get("root_rank", named.get("root", named.get("src"))))
        if kind in ("broadcast", "reduce", "gather", "scatter")
        else None,
        tag=int(named.get("tag", 0) or 0),
        reads=tuple(reads),
        writes=tuple(writes),
        reduction=reduction.upper() if isinstance(reduction, str) else "",
    )


def _check_sizes(kind: str, read: int, written: int, ranks: int) -> None:
    """A group that answers at once takes tensors of any size; others do not."""
    part, whole = (read, written) if kind == "all_gather" else (written, read)
    if part * ranks != whole:
        raise ValueError(f"{kind} over {ranks} ranks has {whole} elements, and {part} on each rank")


def _group(torch: Any, named: dict[str, Any]) -> Any:
    given = named.get("process_group")
    if given is not None:
        return torch.distributed.ProcessGroup.unbox(given)
    name = named.get("group_name", named.get("tag"))
    return torch.distributed.distributed_c10d._resolve_process_group(name)


def _member(members: list[int], group_rank: Any) -> int | None:
    return members[group_rank] if isinstance(group_rank, int) and 0 <= group_rank < len(members) else None


def _sides(torch: Any, kind: str, named: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """(Tensors that are read, tensors that are written.)"""

    def of(*names: str) -> list[Any]:
        return [t for name in names if name in named for t in tensors_in(named[name], torch.Tensor)]

    into = of("output_tensors", "output_tensor", "output", "outputs", "out")
    given = of("input_tensors", "input_tensor", "input", "inputs", "tensor")
    both = of("tensors")
    if kind == "send":
        return both, []
    if kind == "recv":
        return [], both
    if kind == "barrier":
        return [], []
    return (given or both), (into or both)


def _bytes(tensors: list[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
