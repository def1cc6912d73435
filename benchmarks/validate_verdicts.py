"""How often `etude diagnose` names the fault, the right ranks and nobody else: runs of two sources, by kind.

    python benchmarks/validate_verdicts.py --each 7 --clean 120 --seed 5000
    python benchmarks/validate_verdicts.py --source jobs --each 10 --factors 1.05 --kinds rank,host_calls
    python benchmarks/validate_verdicts.py --state verdicts.jsonl --minutes 6

With `--state` each run is kept as it is judged: the same command goes on where it was stopped.

`foreign_faults` (arrays) and `foreign_jobs` (stages) write the runs; half of the clean ones come from each.

A fault counts as named if a finding has its kind (and its level: a switch, power), and the ranks are exactly those to
blame; of a link, both ends or the port are among them. A rank is innocent if a finding of a fault kind has it and it is
not to blame; findings about the job name no rank. Confidence is compared with how often findings of a fault kind are
right.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import foreign_faults
import foreign_jobs
from foreign_faults import Truth

from etude.analyse.diagnose import faults
from etude.analyse.findings import Verdict

SHOW = False
SOURCES = {"arrays": foreign_faults, "jobs": foreign_jobs}


@dataclass
class Judged:
    source: str
    truth: Truth
    seed: int
    named: bool
    innocent: tuple[int, ...]
    sure: list[tuple[float, bool]]
    said: list[str]
    seconds: float
    """CPU, of the diagnosis."""
    made_in: float
    """CPU, of the injector."""

    @property
    def wrong(self) -> bool:
        return bool(self.said) if self.truth.injected == "clean" else not self.named or bool(self.innocent)

    @property
    def text(self) -> str:
        t = self.truth
        named = f"innocent {self.innocent[:6]}" if self.innocent else ""
        where = f"{self.source} {t.program} {t.size} ranks {t.steps} steps from {t.since}: {t.ranks[:8]} {named}"
        return "\n    ".join([f"\n{t.injected} {t.severity} seed {self.seed} {where}", *self.said])


def judged(source: str, kind: str, factor: float, seed: int) -> Judged:
    start = time.process_time()
    run, truth = SOURCES[source].injected(seed, kind, factor)
    began = time.process_time()
    found = faults(run)
    took = time.process_time() - began
    right = [_right(one, truth, run.job.world_size) for one in found]
    guilty = set(truth.ranks)
    innocent = {r for one in found if len(one.ranks) < truth.size for r in one.ranks} - guilty
    if truth.kinds == ("slow_link",):
        innocent = {r for one, ok in zip(found, right, strict=True) if not ok for r in one.ranks} - guilty
    named = any(right) and not innocent if truth.kinds[:1] != ("throttled",) else _covered(found, truth)
    said = [f"{one.kind} {one.ranks[:6]} {one.confidence:.2f} {one.score:.1f} {one.words}" for one in found]
    sure = [(one.confidence, ok) for one, ok in zip(found, right, strict=True)]
    made = Judged(source, truth, seed, named, tuple(sorted(innocent)), sure, said, took, began - start)
    if SHOW and made.wrong:
        print(made.text, file=sys.stderr, flush=True)
    return made


def _right(one: Verdict, truth: Truth, world: int) -> bool:
    if one.kind not in truth.kinds or (truth.level and one.level != truth.level):
        return False
    if one.kind == "slow_link":
        return bool(set(truth.ranks) & set(one.ranks)) and len(one.ranks) <= max(2, len(truth.ranks))
    return set(one.ranks) == set(truth.ranks)


def _covered(found: list[Verdict], truth: Truth) -> bool:
    """Of a subset of all ranks: together the findings name it."""
    found = [one for one in found if not truth.level or one.level == truth.level]
    slow = [one for one in found if one.kind in ("throttled", "slow_rank", "slow_node", "common_change")]
    return {r for one in slow for r in one.ranks} == set(truth.ranks)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--each", type=int, default=14, help="runs of each kind and slow-down")
    asked.add_argument("--clean", type=int, default=120)
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--source", default=",".join(SOURCES), help="arrays, jobs, or both")
    asked.add_argument("--kinds", default="", help="of faults; all if not given")
    asked.add_argument("--factors", default="1.1,1.2,1.06")
    asked.add_argument("--most", type=int, default=10_000, help="most ranks x steps of a run")
    asked.add_argument("--largest", type=int, default=1024, help="most ranks of a run")
    asked.add_argument("--show", action="store_true", help="on stderr, what is said of runs that are judged wrong")
    asked.add_argument("--json", type=Path)
    asked.add_argument("--workers", type=int, default=1, help="processes; the same runs and figures")
    asked.add_argument("--state", type=Path, help="keep what was judged, and go on with what is in it")
    asked.add_argument("--minutes", type=float, default=0.0, help="CPU minutes after which it stops, with --state")
    given = asked.parse_args()
    global SHOW
    SHOW = given.show
    wanted = list(_wanted(given))
    known = _known(given)
    left = [one for one in sorted(wanted, key=_turn) if one not in known]
    for done in _judged(given, left):
        known[done.source, done.truth.injected, done.truth.severity, done.seed] = done
    results = [known[one] for one in wanted if one in known]
    report(results)
    if len(results) < len(wanted):
        print(f"{len(wanted) - len(results)} of {len(wanted)} runs are left: the same command goes on with them")
    if given.json:
        given.json.write_text(json.dumps([_record(one) for one in results], indent=1))


Asked = tuple[str, str, float, int]
"""Source, kind, how much longer something takes, seed."""


def _wanted(given: argparse.Namespace) -> Iterator[Asked]:
    factors = [float(f) for f in given.factors.split(",")]
    sources = given.source.split(",")
    for number, source in enumerate(sources):
        module: Any = SOURCES[source]
        module.MOST = min(module.MOST, given.most)
        module.SIZES = tuple(size for size in module.SIZES if size <= given.largest)
        for i in range(number, given.clean, len(sources)):
            yield source, "clean", 1.0, given.seed + i
        for kind in [k for k in module.KINDS if not given.kinds or k in given.kinds.split(",")]:
            for i in range(given.each):
                yield source, kind, factors[i % len(factors)], given.seed + i


def _turn(asked: Asked) -> int:
    """In no order of kinds or sizes: what is judged so far is a sample of all."""
    source, kind, _, seed = asked
    return zlib.crc32(f"{source} {kind} {seed}".encode())


def _known(given: argparse.Namespace) -> dict[Asked, Judged]:
    """What is in the file of an earlier start, which was asked for runs of the same sizes."""
    sizes = {"most": given.most, "largest": given.largest}
    if given.state is None:
        return {}
    if not given.state.exists():
        given.state.write_text(json.dumps(sizes) + "\n")
    first, *lines = given.state.read_text().splitlines()
    if json.loads(first) != sizes:
        sys.exit(f"{given.state} holds runs of {first}, not of {json.dumps(sizes)}")
    found = (_read(json.loads(line)) for line in lines)
    return {(one.source, one.truth.injected, one.truth.severity, one.seed): one for one in found}


def _read(kept: dict[str, Any]) -> Judged:
    truth = {key: tuple(value) if isinstance(value, list) else value for key, value in kept.pop("truth").items()}
    innocent, sure = tuple(kept.pop("innocent")), [(float(much), bool(ok)) for much, ok in kept.pop("sure")]
    return Judged(truth=Truth(**truth), innocent=innocent, sure=sure, **kept)


def _judged(given: argparse.Namespace, left: list[Asked]) -> Iterator[Judged]:
    """One after the other, or by several processes, until the minutes are over."""
    if given.workers > 1 and left:
        judged(*left[0])  # what is compiled once need not be by each of them
        with multiprocessing.get_context("fork").Pool(given.workers) as pool:
            yield from _kept(given, pool.imap(_one, left, chunksize=1))
    else:
        yield from _kept(given, map(_one, left))


def _one(asked: Asked) -> Judged:
    return judged(*asked)


def _kept(given: argparse.Namespace, results: Iterable[Judged]) -> Iterator[Judged]:
    spent = 0.0
    for one in results:
        if given.state is not None:
            with given.state.open("a") as out:
                out.write(json.dumps(asdict(one), default=int) + "\n")
        yield one
        spent += one.seconds + one.made_in
        if given.minutes and spent > 60 * given.minutes:
            return


def _record(one: Judged) -> dict[str, Any]:
    return {
        "kind": one.truth.injected,
        "program": one.truth.program,
        "ranks": one.truth.size,
        "steps": one.truth.steps,
        "severity": one.truth.severity,
        "named": one.named,
        "innocent": list(one.innocent),
        "said": one.said,
    }


def report(results: list[Judged]) -> None:
    clean = [r for r in results if r.truth.injected == "clean"]
    faulty = [r for r in results if r.truth.injected != "clean"]
    sizes, steps = sorted(r.truth.size for r in results), sorted(r.truth.steps for r in results)
    print(
        f"runs: {len(results)}, clean: {len(clean)}; ranks {sizes[0]} to {sizes[-1]}, steps {steps[0]} to {steps[-1]}"
    )
    print(f"clean runs with a finding of a fault kind: {sum(bool(r.said) for r in clean)} of {len(clean)}")
    cells: dict[tuple[str, bool], list[Judged]] = defaultdict(list)
    for r in faulty:
        cells[r.truth.injected, r.truth.severity >= 1.08].append(r)
    print(f"{'fault':<18}{'from 8% up':>14}{'below 8%':>14}{'innocents':>12}")
    for kind in dict.fromkeys(r.truth.injected for r in faulty):
        high, low = cells[kind, True], cells[kind, False]
        shown = [f"{sum(r.named for r in part)} of {len(part)}" if part else "" for part in (high, low)]
        print(f"{kind:<18}{shown[0]:>14}{shown[1]:>14}{sum(bool(r.innocent) for r in high + low):>12}")
    for name, part in (
        ("from 8% up", [r for r in faulty if r.truth.severity >= 1.08]),
        ("below 8%", [r for r in faulty if r.truth.severity < 1.08]),
    ):
        if part:
            n = sum(r.named for r in part)
            print(f"all, {name}: {n} of {len(part)} ({100 * n / len(part):.1f}%)")
    if faulty:
        n = sum(bool(r.innocent) for r in faulty)
        print(f"innocent ranks: in {n} of {len(faulty)} faulty runs ({100 * n / len(faulty):.1f}%)")
    every = [pair for r in results for pair in r.sure]
    for least, most in ((0, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 0.98), (0.98, 1.01)):
        mine = [ok for sure, ok in every if least <= sure < most]
        if mine:
            said = float(np.mean([sure for sure, _ in every if least <= sure < most]))
            between = f"{least:.2f} to {min(most, 1):.2f}"
            print(f"confidence {between}: mean {said:.3f}, right {np.mean(mine):.3f} of {len(mine)}")
    slowest = max(results, key=lambda r: r.seconds)
    print(
        f"CPU seconds: {sum(r.seconds for r in results):.0f} to diagnose, {slowest.seconds:.1f} at most, and "
        f"{sum(r.made_in for r in results):.0f} to inject"
    )


if __name__ == "__main__":
    main()
