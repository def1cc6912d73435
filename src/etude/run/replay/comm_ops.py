"""Communication operators of PyTorch: what each does, and the meaning of its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from etude.run.replay.arguments import Arguments, RecordedTensor
from etude.run.replay.program import CommKind


@dataclass(frozen=True, slots=True)
class CommOp:
    """Positions of the arguments; -1 if the operator has no such argument."""

    kind: CommKind
    output: int = -1
    input: int = -1
    peer: int = -1
    """Root, sender or receiver, as a rank within the group."""
    tag: int = -1
    in_splits: int = -1
    out_splits: int = -1


C = CommKind
COMM_OPS: Final = {
    "c10d::allreduce_": CommOp(C.ALL_REDUCE, 0, 0),
    "c10d::allreduce_coalesced_": CommOp(C.ALL_REDUCE, 0, 0),
    "c10d::broadcast_": CommOp(C.BROADCAST, 0, 0, peer=2),
    "c10d::reduce_": CommOp(C.REDUCE, 0, 0, peer=3),
    "c10d::allgather_": CommOp(C.ALL_GATHER, 0, 1),
    "c10d::_allgather_base_": CommOp(C.ALL_GATHER, 0, 1),
    "c10d::allgather_coalesced_": CommOp(C.ALL_GATHER, 0, 1),
    "c10d::allgather_into_tensor_coalesced_": CommOp(C.ALL_GATHER, 0, 1),
    "c10d::reduce_scatter_": CommOp(C.REDUCE_SCATTER, 0, 1),
    "c10d::_reduce_scatter_base_": CommOp(C.REDUCE_SCATTER, 0, 1),
    "c10d::reduce_scatter_tensor_coalesced_": CommOp(C.REDUCE_SCATTER, 0, 1),
    "c10d::alltoall_base_": CommOp(C.ALL_TO_ALL, 0, 1, out_splits=3, in_splits=4),
    "c10d::alltoall_": CommOp(C.ALL_TO_ALL, 0, 1),
    "c10d::gather_": CommOp(C.GATHER, 0, 1, peer=3),
    "c10d::scatter_": CommOp(C.SCATTER, 0, 1, peer=3),
    "c10d::barrier": CommOp(C.BARRIER),
    "c10d::send": CommOp(C.SEND, input=0, peer=2, tag=3),
    "c10d::recv_": CommOp(C.RECV, output=0, peer=2, tag=3),
    "c10d::recv_any_source_": CommOp(C.RECV, output=0, tag=2),
}
WAITS: Final = ("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd")
"""Operators without work of their own: waits are taken from the graph."""


def tensors_at(given: Arguments, at: int) -> list[RecordedTensor]:
    """The tensors of one argument, with lists flattened."""
    found: list[RecordedTensor] = []

    def open_up(value: Any) -> None:
        if isinstance(value, dict) and "t" in value:
            found.append(given.tensors[value["t"]])
        for one in value if isinstance(value, list) else ():
            open_up(one)

    if 0 <= at < len(given.form):
        open_up(given.form[at])
    return found


def numbers_at(given: Arguments, at: int) -> list[int]:
    """An argument that is a list of numbers."""
    value = given.form[at] if 0 <= at < len(given.form) else None
    return [v for v in value if isinstance(v, int)] if isinstance(value, list) else []


def number_at(given: Arguments, at: int) -> int:
    value = given.form[at] if 0 <= at < len(given.form) else None
    return value if isinstance(value, int) else -1
