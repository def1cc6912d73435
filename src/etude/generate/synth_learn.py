"""learn(jobs): a model of what they have in common.

The nodes of a program, each behind what it waits for, become classes: what a node does, where it runs, how large it is.
What it waits for is said by class and how many of that class back; what follows from the rest is left out. Repeats of
the sequence are folded. Sizes become quantiles of their class, over all jobs together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.errors import TraceError, UsageError
from etude.generate.synth import COLUMNS, QUANTILES, STEPS, Learned, LearnedRole, NodeClass, Sketch, Symbol, Template
from etude.generate.synth_grammar import folded
from etude.model import graph
from etude.model.fold import fold
from etude.model.job import Job
from etude.model.schema import NODE, UNKNOWN
from etude.model.trace import Trace

I64 = NDArray[np.int64]

MAX_OWN: Final = 64
"""Ranks of a role whose own values are learned from."""
WINDOW: Final = 4096
"""Nodes back in which a dependency is found to follow from others."""
PER_OCTAVE: Final = np.array([0.5, 4, 4, 4, 4])
"""Scales of each column to an octave: work and bytes are what they are, times vary from run to run."""
NONE, ZERO = -2, -1
"""Scales of a value that is not there, and of nothing."""


def learn(jobs: Sequence[Job]) -> Learned:
    """What there is to learn of these jobs."""
    if not jobs:
        raise UsageError("no job to learn from")
    book = _Book()
    templates = tuple(_template(fold(job), book) for job in jobs)
    hidden: dict[str, int] = {}
    for job in jobs:
        for what, count in _hidden(job).items():
            hidden[what] = hidden.get(what, 0) + count
    return Learned(classes=book.classes(), symbols=tuple(book.symbols), templates=templates, hidden=hidden)


class _Book:
    """Classes and symbols as they are met, and the values of each class."""

    def __init__(self) -> None:
        self._class: dict[tuple[int, ...], int] = {}
        self._symbol: dict[Symbol, int] = {}
        self._values: list[list[I64]] = []

    def classed(self, keys: I64, values: I64) -> I64:
        """Class of each row of keys; the rows' values are remembered with it."""
        distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        inverse = inverse.ravel()
        first = np.full(len(distinct), len(keys), np.int64)
        np.minimum.at(first, inverse, np.arange(len(keys)))
        numbers = np.empty(len(distinct), np.int64)
        for row in np.argsort(first).tolist():
            numbers[row] = self._class.setdefault(tuple(distinct[row].tolist()), len(self._class))
        self._values += [[] for _ in range(len(self._class) - len(self._values))]
        self.pool(numbers[inverse], values)
        return numbers[inverse]

    def pool(self, classes: I64, values: I64) -> None:
        """More values of classes that are known."""
        order = np.argsort(classes, kind="stable")
        numbers, first = np.unique(classes[order], return_index=True)
        for number, some in zip(numbers.tolist(), np.split(values[order], first[1:]), strict=True):
            self._values[number].append(some)

    def symbol(self, one: Symbol) -> int:
        return self._symbol.setdefault(one, len(self._symbol))

    @property
    def symbols(self) -> list[Symbol]:
        return list(self._symbol)

    def classes(self) -> tuple[NodeClass, ...]:
        return tuple(_class_of(key, np.concatenate(self._values[n])) for key, n in self._class.items())


FIELDS: Final = ("kind", "cpu", "lane", "collective", "group", "src", "dst", "priority")


def _class_of(key: tuple[int, ...], values: I64) -> NodeClass:
    kind, cpu, lane, collective, group, src, dst, priority, *scale = key
    sketches = {c: sketch(values[:, i]) for i, c in enumerate(COLUMNS) if scale[i] != NONE}
    known = None if priority == UNKNOWN else priority
    return NodeClass(kind, cpu, lane, collective, group, src, dst, known, tuple(scale), sketches)


def sketch(values: I64) -> Sketch:
    values = values[values != UNKNOWN]
    return Sketch(tuple(on_grid(np.quantile(values, QUANTILES)).tolist()), float(f"{values.mean():.3g}"))


def on_grid(values: NDArray[Any]) -> I64:
    """Numbers to the nearest of 64 to an octave, halfway between those that a power of two would be among; 0 stays."""
    with np.errstate(divide="ignore"):
        step = np.floor(np.log2(np.maximum(values, 1e-9)) * STEPS) + 0.5
    return np.where(values > 0, np.maximum(np.rint(np.exp2(step / STEPS)), 1), 0).astype(np.int64)


# -- programs ----------------------------------------------------------------------------------------------------


def _role(trace: Trace, book: _Book, own: Sequence[Mapping[str, NDArray[Any]]]) -> LearnedRole:
    """The program of a trace. `own`: values of single ranks, which are learned from too."""
    order = _order(trace)
    if len(order) < len(trace):
        raise TraceError("nodes wait for one another in a circle, so there is no order to learn")
    place = np.empty(len(trace), np.int64)
    place[order] = np.arange(len(trace))
    keys, values = _keys(trace)
    classes = book.classed(keys[order], values[order])
    for other in own[:MAX_OWN]:
        columns = [other.get(c, values[:, i]) for i, c in enumerate(COLUMNS)]
        book.pool(classes, np.stack(columns, 1)[order])
    within = _within(classes)
    data, ctrl = (_waits(trace, which, order, place) for which in ("data", "ctrl"))
    data, ctrl = _reduced(data, ctrl)
    seen: dict[int, int] = {}
    symbols = np.empty(len(trace), np.int64)
    for i, node_class in enumerate(classes.tolist()):
        said = [tuple(sorted((int(classes[j]), seen[int(classes[j])] - int(within[j])) for j in waits[i]))
                for waits in (data, ctrl)]  # fmt: skip
        symbols[i] = book.symbol(Symbol(node_class, *said))
        seen[node_class] = seen.get(node_class, 0) + 1
    return LearnedRole(order=folded(symbols), groups=len(trace.group_slots), peers=trace.peer_slots)


def _order(trace: Trace) -> NDArray[np.int32]:
    """Each node behind what it waits for, and what it frees right behind it: a micro-batch stays together."""
    waits, frees = graph.dependencies(trace), graph.successors(trace)
    start, rows = frees.start.tolist(), frees.rows.tolist()
    owner = np.repeat(np.arange(len(trace)), np.diff(waits.start))
    missing = np.bincount(owner[waits.rows >= 0], minlength=len(trace)).tolist()
    stack = [row for row in reversed(range(len(trace))) if not missing[row]]
    found = []
    while stack:
        row = stack.pop()
        found.append(row)
        for other in reversed(rows[start[row] : start[row + 1]]):
            missing[other] -= 1
            if not missing[other]:
                stack.append(other)
    return np.array(found, np.int32)


def _keys(trace: Trace) -> tuple[I64, I64]:
    """What a node is, and how large; and its values."""
    values = np.stack([getattr(trace, c).astype(np.int64) for c in COLUMNS], 1)
    frames = np.zeros(len(trace), bool)
    frames[trace.parent[(trace.parent >= 0) & (trace.cpu == 1)]] = True
    values[frames & (trace.cpu == 1), 0] = 0  # their time runs in what they call
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.floor(PER_OCTAVE * np.log2(np.maximum(values, 1))).astype(np.int64)
    scale[values == 0], scale[values == UNKNOWN] = ZERO, NONE
    # What a compute node takes varies from run to run; where its work is known, that says how large it is.
    known = (values[:, 1] != UNKNOWN) | (values[:, 2] != UNKNOWN)
    scale[known & (values[:, 0] > 0), 0] = 0
    what = np.stack([getattr(trace, name).astype(np.int64) for name in FIELDS], 1)
    # Lanes that follow from the kind alone are not learned: they follow again.
    what[(trace.cpu != 1) & (trace.stream == UNKNOWN), FIELDS.index("lane")] = -1
    return np.concatenate([what, scale], 1), values


def _within(classes: I64) -> I64:
    """How many of its class come before each node."""
    order = np.argsort(classes, kind="stable")
    same = classes[order]
    first = np.concatenate([[0], np.flatnonzero(np.diff(same)) + 1]) if len(same) else np.zeros(0, np.int64)
    counts = np.diff(np.append(first, len(same)))
    within = np.empty(len(classes), np.int64)
    within[order] = np.arange(len(same)) - np.repeat(first, counts)
    return within


def _waits(trace: Trace, which: str, order: NDArray[np.int32], place: I64) -> list[list[int]]:
    start, rows = getattr(trace, f"{which}_start"), getattr(trace, which)
    flat = rows.tolist()
    found = []
    for row in order.tolist():
        waits = {int(place[j]) for j in flat[start[row] : start[row + 1]] if j >= 0 and j != row}
        found.append(sorted(waits))
    return found


def _reduced(data: list[list[int]], ctrl: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Without what follows from the rest: bit k of `before[i]` says that node i - 1 - k comes before i anyway."""
    mask = (1 << WINDOW) - 1
    before: list[int] = []
    kept_data, kept_ctrl = [], []
    for i, (d, c) in enumerate(zip(data, ctrl, strict=True)):
        implied = 0
        for j in {*d, *c}:
            if i - j < WINDOW:
                implied |= before[j] << (i - j)
        implied &= mask
        kept_data.append([j for j in d if i - 1 - j >= WINDOW or not implied >> (i - 1 - j) & 1])
        kept_ctrl.append([j for j in c if i - 1 - j >= WINDOW or not implied >> (i - 1 - j) & 1])
        mine = implied
        for j in (*d, *c):
            if i - 1 - j < WINDOW:
                mine |= 1 << (i - 1 - j)
        before.append(mine)
    return kept_data, kept_ctrl


# -- ranks -------------------------------------------------------------------------------------------------------


def _template(job: Job, book: _Book) -> Template:
    if len(job) != job.world_size:
        raise UsageError(f"{len(job)} of {job.world_size} ranks are there, and all are needed", where=job.name)
    if not job.groups.known.all():
        raise UsageError("the members of a group are not known", where=job.name, hint="give a group file: --groups")
    roles = []
    for number, trace in enumerate(job.traces):
        own = [job.values[r] for r in job.ranks[job.trace_of == number].tolist() if r in job.values]
        roles.append(_role(trace, book, own))
    members = [job.groups.members[a:b] for a, b in zip(job.groups.start[:-1], job.groups.start[1:], strict=True)]
    group_of: list[list[tuple[int, int]]] = []
    peer_of: list[list[tuple[int, int]]] = []
    for number, role in enumerate(roles):
        ranks = np.flatnonzero(job.trace_of == number)
        group_of += [runs(job.group_of[job.group_start[ranks] + slot]) for slot in range(role.groups)]
        peer_of += [runs(job.peer_of[job.peer_start[ranks] + slot] - ranks) for slot in range(role.peers)]
    grows, axis = _growing(job, members)
    return Template(
        ranks=len(job),
        nodes=job.nodes,
        roles=tuple(roles),
        role_of=runs(job.trace_of),
        groups=[_arithmetic(m) for m in members],
        group_of=group_of,
        peer_of=peer_of,
        grows=grows,
        axis=axis,
    )


def runs(values: NDArray[Any]) -> list[tuple[int, int]]:
    """(times, value), one after another."""
    if not len(values):
        return []
    first = np.concatenate([[0], np.flatnonzero(np.diff(values)) + 1])
    return list(zip(np.diff(np.append(first, len(values))).tolist(), values[first].tolist(), strict=True))


def _arithmetic(members: NDArray[Any]) -> list[tuple[int, int, int]]:
    """Runs of (first, stride, count)."""
    found: list[tuple[int, int, int]] = []
    at = 0
    while at < len(members):
        steps = np.diff(members[at:])
        same = np.flatnonzero(steps != steps[0]) if len(steps) else steps
        count = 1 if not len(steps) else 1 + (int(same[0]) if len(same) else len(steps))
        found.append((int(members[at]), int(steps[0]) if count > 1 else 1, count))
        at += count
    return found


def _growing(job: Job, members: list[NDArray[Any]]) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    """Groups that are longer in a larger job: data parallelism, and all groups in which two of its members meet.

    It is told by what it is for: of the groups of ranks alike, those whose collectives the rest of the step waits for
    least. Gradients are summed for the optimizer; what tensor-parallel ranks sum, the next layer needs.
    """
    home = np.full(len(job), -1, np.int64)
    for role, trace in enumerate(job.traces):
        ranks = np.flatnonzero(job.trace_of == role)
        slot = _data_parallel(trace, [members[g] for g in job.group_slots(int(job.ranks[ranks[0]]))], job.trace_of)
        if slot is None:
            return (), None
        home[ranks] = job.group_of[job.group_start[ranks] + slot]
    used = np.zeros(len(members), bool)
    used[job.group_of] = True
    grows = tuple(g for g, ranks in enumerate(members) if used[g] and len(np.unique(home[ranks])) < len(ranks))
    return grows, _axis(home, members)


def _data_parallel(trace: Trace, groups: list[NDArray[Any]], trace_of: NDArray[Any]) -> int | None:
    """The slot for gradients: of those with ranks alike, and more than a trifle to send, the one least waited for.
    Where ranks are alike nowhere (as they were recorded, each is a little different), any will do."""
    height = _heights(trace)
    sent = np.where(trace.in_bytes == UNKNOWN, 0, trace.in_bytes).astype(np.float64)
    total = np.array([sent[trace.group == slot].sum() for slot in range(len(groups))])
    found = []
    for slot, members in enumerate(groups):
        if len(members) > 1 and total[slot] > 0.01 * total.max():
            calls = trace.group == slot
            waited = float((height[calls] * sent[calls]).sum() / total[slot])
            found.append((bool((trace_of[members] != trace_of[members[0]]).any()), waited, slot))
    return min(found)[2] if found else None


def _axis(home: I64, members: list[NDArray[Any]]) -> tuple[int, int] | None:
    """(stride, size) of groups that lie in the numbering of ranks as an axis does; None where they do not."""
    first = members[int(home[0])]
    stride, size = int(first[1] - first[0]), len(first)
    if stride < 1 or len(home) % (stride * size):
        return None
    rank = np.arange(len(home))
    block = rank // (stride * size) * stride + rank % stride
    distinct = np.unique(np.stack([block, home], 1), axis=0)
    fits = len(distinct) == len(home) // size and all(len(members[g]) == size for g in np.unique(home))
    return (stride, size) if fits and all((np.diff(members[g]) == stride).all() for g in np.unique(home)) else None


def _heights(trace: Trace) -> I64:
    """Nodes on the longest way from each node to the end."""
    frees = graph.successors(trace)
    start, rows = frees.start.tolist(), frees.rows.tolist()
    height = [0] * len(trace)
    for row in reversed(_order(trace).tolist()):
        height[row] = max((height[other] + 1 for other in rows[start[row] : start[row + 1]]), default=0)
    return np.array(height, np.int64)


WORDS: Final = {"name": "names", "phase": "phases", "module": "modules"}


def _hidden(job: Job) -> dict[str, int]:
    """What the job has and a model has not."""
    found = {"group names": len(job.groups), "metadata": len(job.metadata), "recorded start times": 0}
    for trace in job.traces:
        for column in NODE:
            if column.is_text and getattr(trace, column.name).strides != (0,):
                label = {"name": "names", "phase": "phases", "module": "modules"}.get(
                    column.name, "shapes, types, values"
                )
                found[label] = found.get(label, 0) + len(trace.coded(column.name)[1])
        cells = sum(len(nodes) for nodes, _ in trace.attr_cells().values())
        exact = {int(v) for c in COLUMNS for v in np.unique(getattr(trace, c)) if v not in (UNKNOWN, 0)}
        found["attributes"] = found.get("attributes", 0) + cells
        found["exact sizes and times"] = found.get("exact sizes and times", 0) + len(exact)
    if job.timing is not None:
        found["recorded start times"] = sum(int((s != UNKNOWN).sum()) for s in job.timing.start_ns)
    return {what: count for what, count in found.items() if count}
