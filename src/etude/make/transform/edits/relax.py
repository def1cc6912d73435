"""relax: the order of a schedule as a hint. Edges that only keep the program's order between two actions are cut."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I64, Bool
from etude.make.transform.edits.definition import Definition, Here, Parameter, choice, size
from etude.make.transform.rewrite.rewriting import BEFORE, compute_stream
from etude.model.schema import AGREE, UNKNOWN, Collective, Kind, Why

NOBODY: Final = "nobody"


def rewrite(here: Here, agree: str, control: int, in_flight: str) -> None:
    """An action is a pass, forward or backward, of one micro-batch. Calls of a group keep their order: otherwise
    members would deadlock."""
    trace = here.trace
    owner = np.repeat(np.arange(len(trace)), np.diff(trace.ctrl_start))
    waited = np.maximum(trace.ctrl, 0)
    chosen = np.zeros(len(trace), bool)
    chosen[here.rows] = True
    is_backward, known = _passes(here)
    other = (trace.micro_batch[owner] != trace.micro_batch[waited]) | (is_backward[owner] != is_backward[waited])
    slot = _slot(here, agree)
    calls = (trace.kind[owner] == Kind.COLL) & (trace.kind[waited] == Kind.COLL)
    if slot >= 0:  # those of a group that agrees may come in another
        calls &= (trace.group[owner] != slot) | (trace.group[waited] != slot)
    order = (trace.ctrl >= 0) & (trace.ctrl_why == int(Why.PROGRAM))
    cut = order & other & known[owner] & known[waited] & chosen[owner] & ~calls
    if not cut.any():
        return
    here.made.cut("ctrl", cut)
    actions = _actions(here, is_backward, known)
    if in_flight == "keep":
        _keep_in_flight(here, actions)
    if slot >= 0:
        _agree(here, actions, slot, control)


class _Actions(NamedTuple):
    """The passes of the compute stream, in the order of the program."""

    first: I64
    last: I64
    micro_batch: I64
    is_backward: Bool


def _passes(here: Here) -> tuple[Bool, Bool]:
    """(whether it is part of a backward pass, whether its pass is known) for each node."""
    codes, words = here.trace.coded("phase")
    is_backward = np.array([*(word.startswith("backward") for word in words), False])[codes]
    return is_backward, (here.trace.micro_batch != UNKNOWN) & (codes >= 0)


def _actions(here: Here, is_backward: Bool, known: Bool) -> _Actions:
    trace = here.trace
    work = (trace.kind == Kind.COMP) & (trace.cpu != 1) & (trace.stream == compute_stream(trace)) & known
    rows = np.flatnonzero(work)
    if not len(rows):
        return _Actions(rows, rows, rows, np.zeros(0, bool))
    key = np.stack([trace.step[rows], trace.micro_batch[rows], is_backward[rows]], 1)
    begins = np.append(True, (key[1:] != key[:-1]).any(axis=1))
    at = np.flatnonzero(begins)
    last = np.append(at[1:], len(rows)) - 1
    return _Actions(rows[at], rows[last], trace.micro_batch[rows[at]], is_backward[rows[at]])


def _keep_in_flight(here: Here, actions: _Actions) -> None:
    """Limits the micro-batches between their forward and their backward pass to that of the schedule: with L at most,
    the forward pass of the (k+L)-th waits for the k-th backward pass to end."""
    step = here.trace.step[actions.first]
    key = np.unique(np.stack([step, actions.micro_batch], 1), axis=0, return_inverse=True)[1].reshape(-1)
    forward, backward = np.flatnonzero(~actions.is_backward), np.flatnonzero(actions.is_backward)
    begin = np.sort(forward[np.unique(key[forward], return_index=True)[1]])
    turned = backward[::-1]
    end = np.sort(turned[np.unique(key[turned], return_index=True)[1]])  # the last of each
    ended = np.searchsorted(end, begin)  # before each begins
    most = int((np.arange(len(begin)) + 1 - ended).max(initial=1))
    late = np.arange(most, len(begin))
    here.made.wait(actions.first[begin[late]], actions.last[end[late - most]], Why.PROGRAM, data=False)


def _slot(here: Here, agree: str) -> int:
    """Slot of the group that agrees; -1: none."""
    if agree == NOBODY:
        return -1
    for slot, names in enumerate(here.groups):
        if any(name == agree or name.partition(".")[0] == agree for name in names):
            return slot
    known = ", ".join(sorted({names[0] for names in here.groups if names}))
    raise UsageError(f"agree: no group `{agree}`", hint=f"known: {known}" if known else "the job has no groups")


def _agree(here: Here, actions: _Actions, slot: int, control: int) -> None:
    """Before each pass the first of the group signals the others that it is next."""
    told = here.made.add(
        actions.first, BEFORE, "agree", kind=int(Kind.COLL), collective=int(Collective.BROADCAST), in_bytes=control,
        group=slot, stream=compute_stream(here.trace),
    )  # fmt: skip
    here.made.mark(AGREE)
    here.made.enter(actions.first, told, order=True)
    here.made.wait(actions.first, told, Why.PROGRAM, data=False)


EDIT = Definition(
    doc="order edges between passes of different micro-batches, or forward and backward, are removed; data edges stay",
    cannot=(
        "messages of a runtime other than "
        "`control`; without `agree`, ranks of a group that choose differently never complete"
    ),
    parameters={
        "agree": Parameter(read=str, default=NOBODY, doc="group whose members take the order of their first rank: tp"),
        "control": Parameter(read=size, default="64B", doc="bytes that this rank sends to the others, once per pass"),
        "in_flight": Parameter(
            read=choice("free", "keep"),
            default="free",
            doc="micro-batches in flight on a rank: any number, or at most those of the schedule",
        ),
    },
    selects="node",
    rewrite=rewrite,
)
