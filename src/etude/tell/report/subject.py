"""The subject of a report: a run, and the tables about it that several sections use, each computed once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from etude.analyse.clocks import offsets
from etude.analyse.critical_path import critical_path
from etude.analyse.expressions import evaluate
from etude.analyse.what_if import Retimed
from etude.base.errors import UsageError
from etude.machine.system import Device
from etude.model.frames import SEGMENT
from etude.model.run import Run
from etude.model.timing import Origin, Timing
from etude.model.use import Use, has_device, uses
from etude.tell.report import words
from etude.tell.report.tables import BETWEEN, TABLES
from etude.tell.view.embedded import Packed, Shown, pack
from etude.tell.view.sentences import Asked, Sentence, sentence
from etude.tell.view.slices import UNRECORDED, Slices, slices_of

UNSEEN, ON_THE_WAY = "(nothing recorded)", "from one activity of the device to the next"
DISPATCH = UNRECORDED[1]
LAUNCH = re.compile(r"(cuda|hip)(Ext)?(Module)?Launch|cuLaunch|cudaGraphLaunch")
RUNTIME = re.compile(r"(cuda|hip)[A-Z]|cu[A-Z]")
LOADER = "enumerate(DataLoader)"
WAITS = re.compile(r"Synchronize|Memcpy")
LONG_CALL_NS, LONG_CALL = 1_000_000, 0.005
"""Calls of the runtime take microseconds; one of this length, in ns and relative to the run, is one-time work."""
NAMED = re.compile(rf"\b({'|'.join(TABLES)})(?=[.\[)])")
"""Tables in an expression."""
SUSPECTS = 4
"""Stragglers that the summary names and the timeline draws; the section has all."""
RETIMED = 2_000_000
"""Most nodes of all ranks for which a report computes what being faster would gain."""
RANKS_DRAWN = 16
"""Ranks of a timeline that are drawn at first; if there are more, a selection."""
RANKS_KEPT, NODES_KEPT = 128, 8_000_000
"""Ranks among which the reader of a page can choose, and nodes of them up to which a page has more than are drawn."""

ORIGINS = {
    Origin.NONE: "of unknown origin",
    Origin.MEASURED: "measured",
    Origin.SIMULATED: "simulated",
    Origin.REPLAYED: "replayed",
}


@dataclass(frozen=True)
class Subject:
    run: Run
    name: str
    label: str = ""
    """Name of the run if there are two: `measured`, `simulated`, or the names of their folders."""
    device: Device | None = None
    """The device of the ranks, if known."""
    allocated: pa.Table | None = None
    """The allocator's activity, if recorded."""
    links: Mapping[str, pa.Table] = field(default_factory=dict)
    """Statistics of the links of a simulated network (`links`, `visits`, `operations`), if given."""
    place: str = ""
    """`a` or `b` on a page of two runs: what its tables are called after."""

    # -- what its numbers are worked out from ------------------------------------------------------------------------

    @cached_property
    def _tables(self) -> dict[str, pa.Table]:
        return {}

    def table(self, name: str) -> pa.Table:
        """A table of `TABLES`, computed once."""
        if name not in self._tables:
            if name not in TABLES:
                raise KeyError(", ".join(TABLES))
            self._tables[name] = TABLES[name](self)
        return self._tables[name]

    def ask(self, query: str) -> Any:
        """The value of an expression over these tables."""
        return evaluate(query, self.table, {"gain": self._gained})

    def _gained(self, *kinds: str, name: str = "", part: float = 0.5, rank: int | None = None) -> int | None:
        return self.gain(*kinds, name=name, part=part, rank=rank)

    def value(self, form: str, query: str) -> Sentence:
        """The value of an expression as it is printed, with the expression."""
        value = self.ask(query)
        shown = NAMED.sub(rf"{self.place}.\1", query) if self.place else query
        return Sentence.of(Asked(words.formatted_as(form, value), shown, form, value))

    def time(self, query: str) -> Sentence:
        return self.value("time", query)

    def percent(self, query: str) -> Sentence:
        return self.value("percent", query)

    def number(self, query: str) -> Sentence:
        return self.value("number", query)

    def plural(self, noun: str, query: str) -> Sentence:
        return self.value(f"plural:{noun}", query)

    def text(self, query: str) -> Sentence:
        return self.value("text", query)

    def shorter(self, ns: str) -> Sentence:
        """`12 ms (9.1%) shorter`; `no shorter` if too little to see."""
        if self.ask(ns) / max(self.span_ns, 1) < 0.001:
            return Sentence.of("no shorter")
        share = f"{ns} / most(run[0].span_ns, 1)"
        return sentence("{time} ({share}) shorter", time=self.time(ns), share=self.percent(share))

    @cached_property
    def packed(self) -> Packed:
        """The timeline of its page."""
        return pack([self.shown()])

    def shown(self) -> Shown:
        slices = self.slices()
        prefix = f"{self.label} · " if self.label else ""
        return Shown(slices, prefix, self.on_path(slices), self.drawn())

    def on_path(self, slices: Slices) -> NDArray[np.bool_]:
        """Per slice: whether it is on the critical path."""
        of = np.full(int(self.run.job.ranks.max()) + 1 if len(self.run.job) else 1, -1, np.int64)
        of[self.run.job.ranks] = np.arange(len(self.run.job))
        keys = of[self.path["rank"].to_numpy()] << 32 | self.path["node"].to_numpy()
        mine = slices.at.astype(np.int64) << 32 | slices.node
        kinds = np.array(self.path["kind"].to_pylist())
        return np.isin(mine, keys[(kinds != "gap") & (kinds != "launch")])

    # -- figures -----------------------------------------------------------------------------------------------------

    @property
    def origin(self) -> str:
        return ORIGINS[self.run.timing.origin]

    @property
    def whose(self) -> str:
        """`the device's`, `the hosts'`: the host is the device where nothing else is."""
        return f"the {self.noun}'s" if len(self.run.job) == 1 else f"the {self.noun}s'"

    @property
    def noun(self) -> str:
        return "device" if self.has_device else "host"

    @property
    def computing(self) -> str:
        return "computing" if self.has_device else "in operators"

    @property
    def idling(self) -> str:
        """What a host does between operators is not recorded, but it is not idle."""
        return "idle" if self.has_device else "between operators"

    @cached_property
    def aligned(self) -> Timing:
        """The times on one clock."""
        return replace(self.run.timing, clock_offset_ns=offsets(self.run), aligned=True)

    @cached_property
    def span_ns(self) -> int:
        span = self.aligned.span()
        if span is None:
            raise UsageError("no node of this job has a start and an end", hint="--system dgx-h100 simulates it first")
        return span[1] - span[0]

    @cached_property
    def first_work_ns(self) -> int:
        """From the first event of the run to the first on a device."""
        first = self.span_ns
        span = self.aligned.span()
        for part in self.run.parts():
            use = uses(part.trace)  # also what was launched before the recording began
            start = part.start_ns[part.timed & (use != Use.NONE) & (use != Use.HOST)]
            if len(start) and span:
                first = min(first, int(start.min() + self.aligned.clock_offset_ns[part.at].min()) - span[0])
        return first

    @property
    def breakdown(self) -> pa.Table:
        return self.table("breakdown")

    @property
    def steps(self) -> pa.Table:
        return self.table("steps")

    def device_time(self, share: float) -> int:
        """A share of the devices' time as ns of the run: for an average rank."""
        spans = [v for v in self.breakdown["span_ns"].to_pylist() if v]
        return round(share * sum(spans) / len(spans)) if spans else 0

    @cached_property
    def exposed_share(self) -> float:
        """Share of the devices' time in communication that no compute hides."""
        whole, exposed = (sum(v or 0 for v in self.breakdown[n].to_pylist()) for n in ("span_ns", "exposed_comm_ns"))
        return exposed / whole if whole else 0.0

    @property
    def collectives(self) -> pa.Table:
        return self.table("collectives")

    @property
    def waiting(self) -> tuple[int, int]:
        """(in collectives, waiting for others in them) in ns, for an average rank that has any."""
        found = self.table("waiting").to_pylist()[0]
        return found["in_collectives_ns"], found["wait_ns"]

    @property
    def kernels(self) -> pa.Table:
        return self.table("kernels")

    @property
    def roofline(self) -> pa.Table:
        return self.table("roofline")

    @property
    def idle(self) -> pa.Table:
        return self.table("idle")

    @property
    def stragglers(self) -> pa.Table:
        return self.table("stragglers")

    @cached_property
    def suspects(self) -> list[int]:
        """Ranks of the stragglers that the summary names."""
        ranks: list[int] = self.stragglers["rank"].slice(0, SUSPECTS).to_pylist()
        return ranks

    @cached_property
    def has_device(self) -> bool:
        """Whether anything runs besides the host, on any rank."""
        return any(has_device(trace) for trace in self.run.job.traces)

    @property
    def replayed_kernels(self) -> int:
        """Kernels run by CUDA graphs, on all ranks."""
        found: int = self.table("host")["replayed_kernels"][0].as_py()
        return found

    @cached_property
    def launches(self) -> int:
        """Calls that launch kernels, on all ranks."""
        found = 0
        for t, ranks in zip(*np.unique(self.run.job.trace_of, return_counts=True), strict=True):
            codes, words = self.run.job.traces[int(t)].coded("name")
            which = np.array([bool(LAUNCH.match(w)) for w in words] + [False])
            found += int(which[codes].sum()) * int(ranks)
        return found

    @cached_property
    def path(self) -> pa.Table:
        """The critical path; an operator's own time has its operator's name."""
        found = critical_path(self.run)
        names = found["name"].to_pylist()
        own = np.array([i for i, name in enumerate(names) if name == SEGMENT], np.int64)
        ranks, nodes = found["rank"].to_numpy()[own], found["node"].to_numpy()[own]
        for rank in np.unique(ranks).tolist():
            trace = self.run.job.traces[int(self.run.job.trace_of[self.run.job.index(rank)])]
            codes, words = trace.coded("name")
            mine = own[ranks == rank]
            callers = trace.parent[nodes[ranks == rank]]
            for i, code in zip(mine.tolist(), np.where(callers >= 0, codes[callers], -1).tolist(), strict=True):
                names[i] = f"{words[code]}, itself" if code >= 0 else BETWEEN
        kinds = found["kind"].to_pylist()
        for i, kind in enumerate(kinds):
            if kind == "gap":
                names[i] = UNSEEN
            elif names[i] == DISPATCH:  # no work of the host: what it launched is on its way
                names[i], kinds[i] = ON_THE_WAY, "launch"
        found = found.set_column(found.column_names.index("kind"), "kind", pa.array(kinds, pa.string()))
        return found.set_column(found.column_names.index("name"), "name", pa.array(names, pa.string()))

    @cached_property
    def retimed(self) -> Retimed | None:
        """The run prepared for re-timing; None if it has too many nodes."""
        nodes = sum(len(self.run.job.traces[t]) for t in self.run.job.trace_of.tolist())
        return Retimed(self.run) if nodes <= RETIMED else None

    def gain(self, *kinds: str, name: str = "", part: float = 0.5, rank: int | None = None) -> int | None:
        """How much shorter the run is, in ns, if nodes of these kinds (of this name, of one rank) take that fraction
        less time; None if it cannot be re-timed."""
        if self.retimed is None:
            return None
        key = (kinds, name, part, rank)
        if key not in self._gains:
            at = None if rank is None else self.run.job.index(rank)
            events = [self.retimed.chosen(kind, name, at) for kind in kinds]
            self._gains[key] = max(self.retimed.buys(np.concatenate(events), part), 0)
        return self._gains[key]

    @cached_property
    def _gains(self) -> dict[tuple[tuple[str, ...], str, float, int | None], int]:
        return {}

    @property
    def path_by_name(self) -> pa.Table:
        return self.table("path_names")

    @cached_property
    def loading_ns(self) -> int:
        """Time on the critical path in which the next batch was fetched."""
        return sum(r["time_ns"] for r in self.path_by_name.to_pylist() if r["kind"] == "host" and LOADER in r["name"])

    @cached_property
    def host_waits_ns(self) -> int:
        """Time on the critical path in which the host waits for the device."""
        rows = self.path_by_name.to_pylist()
        return sum(r["time_ns"] for r in rows if r["kind"] == "host" and WAITS.search(r["name"] or ""))

    @cached_property
    def first_use(self) -> list[tuple[str, int, int]]:
        """(call, times, ns on the critical path) of calls of the device's runtime that take so long that they must be
        loading it, or its kernels; the longest first. Waiting for the device is not included."""
        found: dict[str, list[int]] = {}
        whole = max(self.span_ns, 1)
        path = self.path.filter(pc.equal(self.path["kind"], "host"))
        lasted = pc.subtract(path["end_ns"], path["start_ns"]).to_numpy()
        names = path["name"].to_pylist()
        for i in np.flatnonzero(lasted >= max(LONG_CALL_NS, LONG_CALL * whole)).tolist():
            if RUNTIME.match(names[i]) and not WAITS.search(names[i]):
                entry = found.setdefault(names[i].removesuffix(", itself"), [0, 0])
                entry[0] += 1
                entry[1] += int(lasted[i])
        return sorted(((name, n, ns) for name, (n, ns) in found.items()), key=lambda e: -e[2])

    def drawn(self) -> list[int]:
        """Ranks that the timeline draws at first."""
        return self._chosen(RANKS_DRAWN)

    def kept(self) -> list[int]:
        """Ranks that the timeline has."""
        few = self.run.job.nodes * min(1.0, RANKS_KEPT / max(len(self.run.job), 1)) <= NODES_KEPT
        return sorted({*self._chosen(RANKS_KEPT), *self.drawn()}) if few else self.drawn()

    def _chosen(self, most: int) -> list[int]:
        """All ranks, or those in findings, one of each kind, and others in between."""
        ranks = self.run.job.ranks.tolist()
        if len(ranks) <= most:
            return ranks
        chosen = list(dict.fromkeys(r for r in self.suspects if r in ranks))[: RANKS_DRAWN // 2]
        classes = np.stack([self.run.job.trace_of, self.run.timing.block_of], 1)
        first = np.unique(classes, axis=0, return_index=True)[1].tolist()
        if len(first) <= most - len(chosen):  # one of each kind, if there are few kinds
            chosen = list(dict.fromkeys([*chosen, *(ranks[i] for i in first)]))
        rest = sorted(set(ranks) - set(chosen))
        between = np.linspace(0, len(rest) - 1, most - len(chosen)).round().astype(int).tolist()
        return sorted([*chosen, *(rest[i] for i in between)])

    def slices(self) -> Slices:
        return slices_of(replace(self.run, timing=self.aligned), self.kept())
