"""Memory of a job some of whose forward work was repeated in the backward pass: the memory of the plan that recomputes
the same operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations
from typing import Final, TypeAlias

import numpy as np

from etude.base.units import format_bytes
from etude.make.generate.blocks.recompute import KEPT, NEEDED, PARTS, parse, redone
from etude.make.generate.blocks.shard import Block
from etude.make.generate.train.job import Generated, generate
from etude.model.job import Job
from etude.model.schema import Kind
from etude.model.trace import Trace

Work: TypeAlias = tuple[str, str]
"""Module and name of an operator."""

_UNCHANGED: Final = "memory is that of the unchanged job: no `--recompute` recomputes exactly these operators"


def with_memory(found: Generated, job: Job) -> tuple[Generated, str]:
    """The generated job with its edited form `job` and the memory of the plan that recomputes the same operators, and a
    note that names this plan. Where no plan does, the memory is unchanged."""
    changed = replace(found, job=job)
    again = None if found.plan.twice or found.rounds else _done_again(found.job, job)
    if again is None:
        return changed, _UNCHANGED
    blocks = [block for stage in found.layout.stages for block in stage]
    name = next((name for name in _plans() if _work(blocks, parse(name)) == again), "")
    if not name:
        return changed, _UNCHANGED
    saved = replace(changed, memory=generate(found.model, found.plan.replace(recompute=name)).memory)
    at_most, was = (format_bytes(one.memory_peak_bytes) for one in (saved, found))
    return saved, f"memory is that of `--recompute {name}`, which recomputes the same: {at_most} at most, {was} before"


def _plans() -> Iterator[str]:
    """Values of `--recompute`, those that recompute least first."""
    for parts in chain.from_iterable(combinations(PARTS, n) for n in range(1, len(PARTS) + 1)):
        yield f"selective:{','.join(parts)}"
    yield "full"
    for kept in chain.from_iterable(combinations(KEPT, n) for n in range(len(KEPT) + 1)):
        yield f"full:{','.join([NEEDED, *kept])}"


def _work(blocks: list[Block], twice: frozenset[str]) -> set[Work] | None:
    """Operators that a plan recomputes; None if communication is among them, because an edit leaves communication
    out."""
    found: set[Work] = set()
    made: dict[int, set[Work] | None] = {}
    for block in blocks:
        if id(block.ops) not in made:
            ops = [op for some in redone(block, twice).values() for op in some]
            here = None if any(op.kind != Kind.COMP for op in ops) else {(op.part, op.name) for op in ops}
            made[id(block.ops)] = here if block.goes_back else set()
        own = made[id(block.ops)]
        if own is None:
            return None
        found |= {(f"{block.name}.{part}" if part else block.name, name) for part, name in own}
    return found


def _done_again(before: Job, after: Job) -> set[Work] | None:
    """Operators that the backward passes of every rank repeat: those with a changed count, if the additions are exactly
    their work in the forward passes; else None."""
    pairs = set(zip(before.trace_of.tolist(), after.trace_of.tolist(), strict=True))
    found: set[Work] = set()
    told = []
    for old, new in pairs:
        first, forward = _counted(before.traces[old], "backward"), _counted(before.traces[old], "forward")
        then = _counted(after.traces[new], "backward")
        more = {work: then[work] - first[work] for work in then.keys() | first.keys() if then[work] != first[work]}
        found |= more.keys()
        told.append((more, forward))
    alike = all({work: forward[work] for work in found if forward[work]} == more for more, forward in told)
    return found if alike and found else None


def _counted(trace: Trace, phase: str) -> Counter[Work]:
    phases, words = trace.coded("phase")
    here = np.array([*(word.startswith(phase) for word in words), False])[phases] & (trace.kind == Kind.COMP)
    (modules, paths), (names, told) = trace.coded("module"), trace.coded("name")
    both, count = np.unique(np.stack([modules, names], 1)[here], axis=0, return_counts=True)
    return Counter(
        {
            (paths[m] if m >= 0 else "", told[n] if n >= 0 else ""): c
            for (m, n), c in zip(both.tolist(), count.tolist(), strict=True)
        }
    )
