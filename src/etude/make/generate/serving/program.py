"""The program of one pipeline stage of one instance: its passes in order, with its messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from etude.make.generate.blocks.ops import Op, Stream, bytes_of, message
from etude.make.generate.nodes import Book
from etude.make.generate.plan import Plan
from etude.make.generate.serving.batching import Batched, ModelPass
from etude.make.generate.serving.ops import PassFragments, RankModel
from etude.make.generate.serving.requests import Request
from etude.make.generate.train.fragment import BEFORE
from etude.make.generate.train.layout import split
from etude.make.generate.train.program import StepProgram
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace, complete_layouts, lanes


def stage_layers(layers: int, stages: int) -> list[range]:
    """Layers of each pipeline stage."""
    ends = np.cumsum([0, *split(layers, stages)]).tolist()
    return [range(a, b) for a, b in pairwise(ends)]


@dataclass(slots=True)
class Instance:
    """What one data-parallel copy does."""

    batches: list[Batched]
    requests: list[list[int]]
    """Numbers of the requests of each batch, as its spans count them."""
    reads: bool = True
    makes: bool = True


def in_turn(batches: Sequence[Batched]) -> Iterator[tuple[int, int, ModelPass, bool]]:
    """(batch, number of the pass in it, pass, whether more follow): batches take turns."""
    for k in range(max((len(b.passes) for b in batches), default=0)):
        for at, one in enumerate(batches):
            if k < len(one.passes):
                yield at, k, one.passes[k], k + 1 < len(one.passes)


class ProgramWriter:
    """One program under construction."""

    def __init__(
        self,
        served: Sequence[RankModel],
        plan: Plan,
        split: tuple[int, int],
        requests: Sequence[Request],
        instance: Instance,
        stage: int,
        arrivals: bool,
    ) -> None:
        self.served, self.plan, self.split, self.requests, self.instance = served, plan, split, requests, instance
        self.stage, self.arrivals = stage, arrivals
        self.program = StepProgram(Book())
        layers = [stage_layers(s.model.layers, plan.pp)[stage] for s in served]
        self.passes = [PassFragments(s, self.program.book, r) for s, r in zip(served, layers, strict=True)]
        self.layers = layers[0]
        self.timers: dict[int, int] = {}
        """Row of each arrival -> time after the previous one."""
        self.batch_of: list[int] = []

    def trace(self) -> tuple[Trace, list[str], list[str]]:
        """The trace, and the labels of its group and peer slots."""
        comes = self._arrivals() if self.arrivals and self.stage == 0 and self.instance.reads else {}
        seen: set[int] = set()
        done: dict[int, int] = {}
        tip = BEFORE
        for number, (at, k, one, more) in enumerate(in_turn(self.instance.batches)):
            self.batch_of.append(at)
            fresh = [r for span in one.spans if (r := self.instance.requests[at][span.request]) not in seen]
            seen.update(fresh)
            values = self._inputs(one, at, k, number, done)
            if self.stage == 0:
                values += [comes[r] for r in fresh if r in comes]
                values += [row for r in fresh for row in self._receive(r, number)]
            fragment = self.passes[one.which].fragment(one)
            base = self.program.place(fragment, number, values, [tip])
            value, tip = base + fragment.value, base + fragment.tip
            done[at] = value
            self._outputs(one, at, k, number, value, more=more)
        return self._finished()

    # -- what comes in and goes out -------------------------------------------------------------------------------

    def _inputs(self, one: ModelPass, at: int, k: int, number: int, done: dict[int, int]) -> list[int]:
        pp = self.plan.pp
        if self.stage > 0:
            return [self._message(Kind.RECV, f"stage{self.stage - 1}", self._hidden(one), at, k, 0, number)]
        if k == 0:
            return []
        if pp == 1:
            return [done[at]]
        size = 8 * max(self.instance.batches[at].passes[k - 1].outputs, 1)
        return [self._message(Kind.RECV, f"stage{pp - 1}", size, at, k - 1, 1, number)]

    def _outputs(self, one: ModelPass, at: int, k: int, number: int, value: int, *, more: bool) -> None:
        pp = self.plan.pp
        if self.stage + 1 < pp:
            self._message(Kind.SEND, f"stage{self.stage + 1}", self._hidden(one), at, k, 0, number, value)
        elif pp > 1 and more:
            self._message(Kind.SEND, "stage0", 8 * max(one.outputs, 1), at, k, 1, number, value)
        if self.split[0] and self.instance.reads:
            for span in one.spans:
                if span.last:
                    self._send(self.instance.requests[at][span.request], number, value)

    def _hidden(self, one: ModelPass) -> int:
        s = self.served[one.which]
        rows = s.padded(one.tokens) // (s.local.tp if s.local.sp else 1)
        return bytes_of(rows * s.model.hidden, s.local.dtype)

    def _message(
        self, kind: Kind, peer: str, size: int, at: int, k: int, what: int, number: int, value: int = BEFORE
    ) -> int:
        tag = 1 + 2 * (k * self.plan.pp + at) + what
        dtype = "int64" if what else self.served[0].local.dtype
        op = message(kind, peer, size, "tokens" if what else "hidden", Stream.PIPELINE, dtype=dtype)
        return self.program.add(op, "pipeline", micro_batch=number, data=[value], tag=tag)

    def _kv_bytes(self, request: int) -> int:
        one = self.served[0]
        return self.requests[request].prompt * one.kv_bytes * one.kv_layers(self.layers) + one.state_bytes(self.layers)

    def _send(self, request: int, number: int, value: int) -> None:
        if self.requests[request].output < 2:  # done with its prompt
            return
        readers, makers = self.split
        kept = self.served[0].kv_dtype
        op = message(
            Kind.SEND, f"copy{readers + request % makers}", self._kv_bytes(request), "kv", Stream.CONTEXT, dtype=kept
        )
        self.program.add(op, "cache", micro_batch=number, data=[value], tag=1 + request)

    def _receive(self, request: int, number: int) -> list[int]:
        if self.instance.reads or self.requests[request].output < 2:
            return []
        kept = self.served[0].kv_dtype
        op = message(
            Kind.RECV, f"copy{request % self.split[0]}", self._kv_bytes(request), "kv", Stream.CONTEXT, dtype=kept
        )
        return [self.program.add(op, "cache", micro_batch=number, tag=1 + request)]

    def _arrivals(self) -> dict[int, int]:
        """A clock: one host node for each request, from the previous arrival to its own."""
        mine = sorted((self.requests[r].arrival_ns, r) for part in self.instance.requests for r in part)
        found: dict[int, int] = {}
        last, row = 0, BEFORE
        for arrival, request in mine:
            op = Op(name="arrival", stream=Stream.NONE)
            row = self.program.add(op, "requests", data=[row])
            self.timers[row] = arrival - last
            found[request], last = row, arrival
        return found

    def _finished(self) -> tuple[Trace, list[str], list[str]]:
        if not self.program.rows:  # this instance gets no requests
            self.program.add(Op(name="idle", kind=Kind.METADATA, stream=Stream.NONE), "requests")
        trace, groups, peers = self.program.nodes().trace()
        known = trace.micro_batch != UNKNOWN
        which = np.where(known, trace.micro_batch, 0)
        changed: dict[str, Any] = {
            "step": np.where(known, trace.micro_batch, 0),
            "micro_batch": np.where(known, np.array([*self.batch_of, 0], np.int64)[which], UNKNOWN),
        }
        if self.timers:
            rows = list(self.timers)
            cpu, thread, duration = trace.cpu.copy(), trace.thread.copy(), trace.duration_ns.copy()
            cpu[rows], thread[rows], duration[rows] = 1, 1, list(self.timers.values())
            lane, lane_kind, lane_id = lanes(trace.kind, cpu, thread, trace.stream)
            changed |= {"cpu": cpu, "thread": thread, "duration_ns": duration, "lane": lane, "lane_kind": lane_kind,
                        "lane_id": lane_id}  # fmt: skip
        trace = trace.replace(**changed)
        layouts, layout = complete_layouts(trace)
        return trace.replace(layouts=layouts, layout=layout), groups, peers
