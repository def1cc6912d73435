"""Fits programs to the available processes: groups lose the ranks that have no process.

A collective is played among the members that have a process. Its sizes are either *kept*, so that the whole buffer is
as large as recorded and each member's share grows, or *scaled*, so that a share is as recorded and the buffer shrinks.
Calls for which no other member has a process are left out, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from etude.base.errors import UsageError
from etude.run.replay.program import (
    NOTHING,
    CommColumns,
    CommKind,
    Lists,
    Program,
    StandInKind,
    StandIns,
    StepKind,
    Steps,
)
from etude.run.replay.sizes import ELEMENT

Sizes = Literal["kept", "scaled"]
SIZES: Final = ("kept", "scaled")

_SHARED_OUT: Final = (CommKind.ALL_GATHER, CommKind.GATHER)
_SHARED_IN: Final = (CommKind.REDUCE_SCATTER, CommKind.REDUCE_SCATTER_BLOCK, CommKind.SCATTER)
_MESSAGES: Final = (CommKind.SEND, CommKind.RECV)


def shrink(program: Program, ranks: Sequence[int], sizes: Sizes = "kept") -> Program:
    """The program restricted to these ranks. `about["shrunk"]` describes the changes: how sizes were treated, the
    groups that lost members, and the calls that lost bytes or were left out."""
    if sizes not in SIZES:
        raise UsageError(f"--sizes: unknown value `{sizes}`", hint=", ".join(SIZES))
    here, rank = set(ranks), int(program.about["rank"])
    if rank not in here:
        raise UsageError(f"rank {rank} has no process", where="--ranks")
    world = tuple(range(int(program.about["world_size"])))
    before = [*program.groups, world]
    after = [tuple(r for r in group if r in here) for group in before]
    if after == before:
        return program
    comms, left_out, changed = _comms(program, before, after, here, sizes)
    kinds = Counter(CommKind(int(program.comms.kind[row])).name.lower() for row in np.flatnonzero(left_out).tolist())
    told = {
        "sizes": sizes,
        "ranks": sorted(here),
        "groups": [
            {"name": name, "members": len(old), "here": len(new)}
            for name, old, new in zip(program.group_names, before, after, strict=False)
            if old != new
        ],
        "calls": len(left_out),
        "resized": int(changed.sum()),
        "left_out": dict(kinds),
    }
    steps, stand_ins, labels = _steps(program, left_out)
    about = program.about | {"shrunk": told}
    return replace(
        program, about=about, groups=tuple(after[:-1]), comms=comms, steps=steps, stand_ins=stand_ins, labels=labels
    )


def _comms(
    program: Program, before: list[tuple[int, ...]], after: list[tuple[int, ...]], here: set[int], sizes: Sizes
) -> tuple[CommColumns, np.ndarray, np.ndarray]:
    """The calls among the ranks present, which calls are left out, and which have other sizes now."""
    old = program.comms
    count = len(old.kind)
    left_out, changed = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    in_bytes, out_bytes, peer = old.in_bytes.copy(), old.out_bytes.copy(), old.peer.copy()
    splits = {"in_splits": [], "out_splits": []}  # type: dict[str, list[list[int]]]
    for row in range(count):
        kind, parts = CommKind(int(old.kind[row])), (old.in_splits[row], old.out_splits[row])
        if kind in _MESSAGES:
            left_out[row] = int(old.peer[row]) not in here
        else:
            were, are = before[int(old.group[row])], after[int(old.group[row])]
            left_out[row] = len(are) < 2
            if were != are and are:
                into, out, parts = _resized(program, row, kind, were, are, sizes)
                changed[row] = (into, out) != (int(in_bytes[row]), int(out_bytes[row]))
                in_bytes[row], out_bytes[row] = into, out
                if peer[row] != NOTHING and int(peer[row]) not in here:
                    peer[row] = are[0]
        for name, part in zip(splits, parts, strict=True):
            splits[name].append(part)
    made = replace(
        old,
        in_bytes=in_bytes,
        out_bytes=out_bytes,
        peer=peer,
        in_splits=Lists.of(splits["in_splits"]),
        out_splits=Lists.of(splits["out_splits"]),
    )
    return made, left_out, changed & ~left_out


def _resized(
    program: Program, row: int, kind: CommKind, were: tuple[int, ...], are: tuple[int, ...], sizes: Sizes
) -> tuple[int, int, tuple[list[int], list[int]]]:
    """Input bytes, output bytes and splits of a call among the ranks present.

    The two ranks at the ends of a share compute it by the same rule from what both know, so they still agree on it.
    """
    comms = program.comms
    into, out = int(comms.in_bytes[row]), int(comms.out_bytes[row])
    in_splits, out_splits = comms.in_splits[row], comms.out_splits[row]
    n, m = len(were), len(are)
    at = [were.index(rank) for rank in are]

    def grown(share: int) -> int:
        return share * n // m if sizes == "kept" else share

    whole = in_splits or out_splits
    if kind == CommKind.ALL_TO_ALL and not whole:
        share = grown(into // n)
        return share * m, share * m, ([], [])
    if kind in (*_SHARED_OUT, *_SHARED_IN) and not whole:
        small = grown(min(into, out) if min(into, out) > 0 else max(into, out) // n)
        small -= small % _width(program, row, max(into, out), n)
        large = small * m
        return (
            (small, large if out else 0, ([], [])) if kind in _SHARED_OUT else (large if into else 0, small, ([], []))
        )
    if not whole:
        return into, out, ([], [])
    ins, outs = [grown(in_splits[i]) for i in at] if in_splits else [], []
    outs = [grown(out_splits[i]) for i in at] if out_splits else []
    width = _bytes_of_a_row(into, out, in_splits, out_splits)
    mine = at[are.index(int(program.about["rank"]))]
    in_now = sum(ins) * width if ins else (grown(out_splits[mine]) * width if kind in _SHARED_OUT and into else into)
    out_now = sum(outs) * width if outs else (grown(in_splits[mine]) * width if kind in _SHARED_IN and out else out)
    return in_now, out_now, (ins, outs)


def _width(program: Program, row: int, whole: int, n: int) -> int:
    """Bytes of which a share must be a multiple: an element, or 1 if equal shares of the recorded buffer are not whole
    elements."""
    width = ELEMENT.get(program.dtypes[int(program.comms.dtype[row])], 1)
    return width if whole % (width * n) == 0 else 1


def _bytes_of_a_row(into: int, out: int, in_splits: list[int], out_splits: list[int]) -> int:
    if in_splits and sum(in_splits):
        return into // sum(in_splits)
    return out // sum(out_splits) if out_splits and sum(out_splits) else 0


def _steps(program: Program, left_out: np.ndarray) -> tuple[Steps, StandIns, tuple[str, ...]]:
    """The steps without the calls that are left out. A left-out call that makes tensors becomes a copy of as many
    bytes."""
    steps, stand_ins = program.steps, program.stand_ins
    talks = (steps.kind == StepKind.COMM) | (steps.kind == StepKind.WAIT)
    gone = np.zeros(len(steps.kind), np.bool_)
    gone[talks] = left_out[steps.row[talks]]
    kind, row = steps.kind.copy(), steps.row.copy()
    labels = list(program.labels)
    rows: list[tuple[int, int, int, list[int]]] = []
    for at in np.flatnonzero(gone & (steps.kind == StepKind.COMM)).tolist():
        call = int(steps.row[at])
        outputs = program.comms.outputs[call]
        if outputs:
            kind[at], row[at], gone[at] = StepKind.STAND_IN, len(stand_ins.kind) + len(rows), False
            name = f"{program.labels[int(program.comms.label[call])]}, of which no other member has a process"
            if name not in labels:
                labels.append(name)
            size = int(program.comms.out_bytes[call])
            rows.append((size, int(program.comms.dtype[call]), labels.index(name), outputs))
    keep = ~gone
    others = ("stream", "start_ns", "work_ns", "node", "host_ns")
    made = Steps(kind[keep], row[keep], *(getattr(steps, name)[keep] for name in others))
    sizes, dtype, label = (np.array([entry[k] for entry in rows], np.int64) for k in range(3))
    more = StandIns(
        kind=np.append(stand_ins.kind, np.full(len(rows), StandInKind.COPY, np.uint8)),
        flops=np.append(stand_ins.flops, np.zeros(len(rows), np.int64)),
        size_bytes=np.append(stand_ins.size_bytes, 2 * sizes),
        dtype=np.append(stand_ins.dtype, dtype.astype(np.int32)),
        label=np.append(stand_ins.label, label.astype(np.int32)),
        dims=Lists.of([stand_ins.dims[i] for i in range(len(stand_ins.kind))] + [[]] * len(rows)),
        outputs=Lists.of([stand_ins.outputs[i] for i in range(len(stand_ins.kind))] + [entry[3] for entry in rows]),
    )
    return made, more, tuple(labels)
