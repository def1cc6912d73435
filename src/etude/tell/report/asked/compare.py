"""Two runs side by side: what `etude compare` asks for."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.figures import argument, figure, part, switch
from etude.base.outputs import Tabled
from etude.base.talk import progress, say
from etude.steps.asked.repetitions import opened_runs, sampled
from etude.steps.asked.runs import RunInput, ran_on, times_of
from etude.steps.asked.times import TimesWanted, times_wanted

if TYPE_CHECKING:
    from etude.analyse.gate import GateLimit
    from etude.model.run import Run


FEW = 10
"""Reasons that are shown above the operations; `--why` has all."""
Runs = list[tuple[Path, "Run"]]


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Two runs side by side: why one takes longer, operation by operation, and whether it became worse

    etude compare before.json.gz after.json.gz
    etude compare before.json.gz after.json.gz --why --md
    etude compare base/ new/ --fail-if "step > +3%" --fail-if "memory > 70 GB"
    etude compare base/ new/ --fail-if "mfu < -1%" --ran-on h200
    etude compare run/ run/ --system-b dgx-h200
    etude compare small/ large/ --system dgx-h100
    etude compare h100.json.gz mi300.json.gz --operators
    etude compare served-a/ served-b/
    etude compare fleet-a/ fleet-b/

    Measures of --fail-if: step, compute, communication, exposed (communication that no compute hides), idle, host
    (time of the hosts), launches, memory (peak), mfu, kernel:NAME. A limit in % is a change; with a unit (ms, GB) it
    is a change if it has a sign, else a value of B. It fails if the change is beyond the limit and beyond the noise of
    steps, or of runs where A and B are folders of several.
    """

    a: str = argument(
        "path", "a job, a profiler's trace, a folder of several runs, a served stream, or a fleet", like="a.json.gz"
    )
    b: str = argument("path", "another", like="b.json.gz")
    fail_if: tuple[str, ...] = figure(
        "several",
        'exit with 1 if B is worse, e.g. "step > +3%"; may be given several times',
        (),
        like=[["idle > +5%"]],
        plain=True,
    )
    ran_on: str = ran_on(needs="fail_if")
    system: str = figure(
        "noun", "simulate both there: a name of `etude systems`, or a file", "", names=("-s",), like="dgx-h100"
    )
    system_a: str = figure("noun", "simulate A there", "", like="dgx-h200")
    system_b: str = figure("noun", "simulate B there", "", like="dgx-a100")
    timing_a: str | None = figure("path", "times of A's nodes from a file", None)
    timing_b: str | None = figure("path", "times of B's nodes from a file", None)
    operators: bool = switch("match by launching operators, which recordings of other devices share")
    why: bool = switch("show only the ranked list of causes of the difference")
    top: int = figure("count", "number of rows to show; 0: all", 30, zero=True)
    reading: RunInput = part(RunInput, only=("workers", "as_recorded", "anchor"))
    output: Tabled = part(Tabled)


@dataclass(frozen=True, slots=True)
class ComparedRun:
    path: Path
    system: str
    timing: Path | None
    workers: int
    wanted: TimesWanted = None

    def open(self) -> Runs:
        return opened_runs(self.path, self.workers, self.system, self.timing, wanted=self.wanted)


@dataclass(frozen=True, slots=True)
class CompareInputs:
    sides: tuple[ComparedRun, ComparedRun]
    limits: "tuple[GateLimit, ...]" = ()
    ran_on: str = ""
    detailed: bool = True
    """The runs are compared in detail, not only held to the limits."""
    operators: bool = False
    why: bool = False
    top: int = 0


def inputs(asked: Compare) -> "CompareInputs | tuple[Path, Path]":
    """What two runs are compared by; two served streams or fleets are nothing but their folders."""
    from etude.analyse.gate import parse_limit

    paths = Path(asked.a), Path(asked.b)
    if any((path / name).is_file() for path in paths for name in ("served.json", "fleet.json")):
        return paths
    sides = _side(asked, "a", paths[0]), _side(asked, "b", paths[1])
    limits = tuple(parse_limit(text) for text in asked.fail_if)
    device = asked.ran_on if any(limit.measure == "mfu" for limit in limits) else ""
    output = asked.output
    if limits and (output.csv or output.md):
        return CompareInputs(sides, limits, device, detailed=False)
    why = not output.json and asked.why
    return CompareInputs(sides, limits, device, True, not why and asked.operators, why, asked.top)


def _side(asked: Compare, which: str, path: Path) -> ComparedRun:
    own, timing = times_of(asked, f"system_{which}", f"timing_{which}")
    return ComparedRun(
        path, own or ("" if timing else asked.system), timing, asked.reading.workers, times_wanted(asked.reading)
    )


@dataclass(frozen=True, slots=True)
class Compared:
    checks: list[dict[str, Any]]
    record: dict[str, Any]
    """All results of the comparison of two runs, or of two records: tables and what is said of them."""
    top: int = 0
    why: bool = False
    because: dict[str, Any] | None = None
    """Of a check that failed: the cause, and what differs."""

    @property
    def failed(self) -> bool:
        return any(check["failed"] for check in self.checks)


def run(given: "CompareInputs | tuple[Path, Path]") -> Compared:
    if isinstance(given, tuple):
        return Compared([], _records(*given))
    first, second = (side.open() for side in given.sides)
    checks = _checked(first, second, given.limits, given.ran_on) if given.limits else []
    one, two = (_typical(runs) for runs in (first, second))
    found = Compared(checks, _record(one, two, given.operators) if given.detailed else {}, given.top, given.why)
    for check in checks:
        if check["note"]:
            say(f"note: {check['check']}: {check['note']}")
    if checks:
        say("failed: " + ", ".join(c["check"] for c in checks if c["failed"]) if found.failed else "passed")
    return replace(found, because=_because(one, two)) if found.failed else found


def _because(one: "Run", two: "Run") -> dict[str, Any]:
    """Why the second run takes longer, where it does; it is said as well."""
    from etude.analyse.causes import cause_between

    found = cause_between(one, two)
    if found["share"]:
        most, differs = (f"; {found[name]}" if found[name] else "" for name in ("most", "differs"))
        say(f"cause: {found['cause']}, {100 * found['share']:.0f}% of the difference{most}{differs}")
    return found


def _records(a: Path, b: Path) -> dict[str, Any]:
    """The comparison of two served streams, or of two fleets."""
    from etude.world.fleet import is_fleet, read_fleet
    from etude.world.serve.stored import compared, read_served

    read = read_fleet if is_fleet(a) or is_fleet(b) else read_served
    measures, settings = compared(read(a).record, read(b).record)
    return {"measures": measures, "settings": settings}


def _checked(first: Runs, second: Runs, limits: "tuple[GateLimit, ...]", ran_on: str) -> list[dict[str, Any]]:
    from etude.analyse.gate import gate
    from etude.tell.report import device_of

    memory = any(limit.measure == "memory" for limit in limits)
    sides = [
        [sampled(place, run, device_of(run.job, ran_on), memory=memory) for place, run in runs]
        for runs in (first, second)
    ]
    with progress("checking"):
        return gate(sides[0], sides[1], limits)


def _typical(runs: Runs) -> "Run":
    """The run with the median step time; of an even number, the lower one of the two."""
    if len(runs) == 1:
        return runs[0][1]
    from etude.analyse.gate_samples import Sampled, samples

    times = [float(one.mean()) for one in samples([Sampled(run) for _, run in runs], "step")]
    chosen = sorted(range(len(runs)), key=times.__getitem__)[(len(runs) - 1) // 2]
    say(f"note: {len(runs)} runs: the one with the median step is compared in detail: {runs[chosen][0]}")
    return runs[chosen][1]


def _record(first: "Run", second: "Run", operators: bool) -> dict[str, Any]:
    from etude.analyse import compare as analyse
    from etude.analyse.reasons import host_side, reasons

    if analyse.per_step(first, second) != (1.0, 1.0):
        say("note: the runs have different numbers of steps; times and counts are per step")
    with progress("comparing"):
        found = analyse.compare(first, second, operators=operators)
        return {
            "similarity": analyse.similarity(found),
            "breakdown": analyse.breakdowns(first, second),
            "host": host_side(first, second),
            "reasons": reasons(first, second),
            "causes": found,
        }


def record(found: Compared) -> dict[str, Any]:
    """As JSON: the verdict, with the figures of the first check that failed or of the first, and all tables."""
    made: dict[str, Any] = {}
    if found.checks:
        named = next((check for check in found.checks if check["failed"]), found.checks[0])
        made = {"failed": found.failed, "ratio": named["ratio"], "interval": named["interval"], "checks": found.checks}
        made |= {"because": found.because} if found.because else {}
    first = {name: _first(found, name) for name in found.record if name != "similarity"}
    similar = {"similarity": found.record["similarity"]} if "similarity" in found.record else {}
    return made | similar | {name: rows.to_pylist() for name, rows in first.items()}


def _first(found: Compared, name: str) -> Any:
    """A table of the comparison, with its first rows where it is long."""
    cut = found.top and name in ("reasons", "causes")
    return found.record[name].slice(0, found.top) if cut else found.record[name]


def table(found: Compared) -> Any:
    """What is printed last, or alone; what else is known is said."""
    if "measures" in found.record:
        for row in found.record["settings"].to_pylist():
            say(f"{row['setting']}: {row['a']} and {row['b']}")
        return found.record["measures"]
    if not found.record:
        from etude.analyse.gate import table as checks

        return checks(found.checks)
    if found.why:
        return _first(found, "reasons")
    alike = ", ".join(f"{name} {100 * value:.1f}%" for name, value in found.record["similarity"].items())
    say(f"similarity of the operations on the devices: {alike}")
    return _first(found, "causes")


def reads(found: Compared) -> Iterator[Any]:
    from etude.analyse.gate import table as checks

    above = [checks(found.checks)] if found.checks else []
    if "breakdown" in found.record and not found.why:
        above += [found.record["breakdown"], found.record["host"], _first(found, "reasons").slice(0, FEW)]
    for one in above:
        yield one
        yield ""
    yield table(found)


def answer(found: Compared) -> dict[str, Any]:
    """For assistants: the same, with tables that say how long they are."""
    from etude.base.excerpts import ROWS, rows_of

    made = {name: value for name, value in record(found).items() if name not in found.record}
    for name, value in found.record.items():
        is_cut = found.top and name in ("reasons", "causes")
        rows = value if name == "similarity" else rows_of(value, min(found.top, ROWS) if is_cut else ROWS)
        made["operations" if name == "causes" else name] = rows
    return made


def code(found: Compared) -> int:
    return int(found.failed)


TOOL_DEFAULTS = {"top": 20}
"""Of an assistant."""
