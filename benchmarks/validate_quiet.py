"""Recorded runs that nobody disturbed: is anybody accused who does not come last in most steps?

    python benchmarks/validate_quiet.py [--shared ../shared] [--least 0.04]

Every run of two ranks or more in the reference data, twice: with the host's trace, and with the profiler's trace alone.
Of each rank that is accused it counts, apart from the analysis, in how many steps it is the one that is behind the
others by most, all its calls of a step together; of a run without steps, to how many calls it comes last.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from etude.analyse.clocks import offsets
from etude.analyse.operations import calls
from etude.analyse.stragglers import LEAST, stragglers
from etude.base.errors import EtudeError
from etude.capture.ingest import causal, runs
from etude.model.run import Run, recorded
from etude.model.schema import UNKNOWN


def real_runs(shared: Path) -> Iterator[tuple[str, list[runs.RankFiles]]]:
    """Runs of several ranks in any folder below, by name."""
    for top in ("traces", "oracle"):
        for folder in sorted({path.parent for path in (shared / top).rglob("*.json.gz")}):
            for name, files in runs.runs_in(folder).items():
                if len(files) > 1:
                    yield f"{folder.relative_to(shared)}/{name}".rstrip("/"), files


def comes_last(run: Run, rank: int) -> tuple[int, int]:
    """(steps in which a rank is furthest behind, steps in which it has calls); calls where no steps are known."""
    found = calls(run)
    shift = offsets(run, found)
    behind: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for call in range(len(found)):
        span = range(int(found.first[call]), int(found.first[call + 1]))
        begun = {int(found.at[i]): int(found.start_ns[i] + shift[found.at[i]])
                 for i in span if found.start_ns[i] != UNKNOWN}  # fmt: skip
        if len(begun) < 2:
            continue
        first = found.first[call]
        step = int(run.job.trace(int(run.job.ranks[found.at[first]])).step[found.row[first]])
        for at, when in begun.items():
            behind[step if step != UNKNOWN else -1 - call][at] += when - min(begun.values())
    mine = [late for late in behind.values() if rank in (int(run.job.ranks[at]) for at in late)]
    last = [late for late in mine if int(run.job.ranks[max(late, key=lambda at: late[at])]) == rank]
    return len(last), len(mine)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path(__file__).resolve().parent.parent.parent / "shared")
    parser.add_argument("--least", type=float, default=LEAST)
    parser.add_argument("--only", default="", help="runs whose name has this in it")
    given = parser.parse_args()
    seen = quiet = wrong = 0
    for name, files in real_runs(given.shared):
        if given.only not in name:
            continue
        alone = [replace(one, host=None, flight=None, manifest=None) for one in files]
        for how, ranks in (("host and device", files), ("device alone", alone)):
            if how == "device alone" and alone == files:
                continue
            try:
                run = recorded(causal.to_job("run", runs.link_run(ranks)))
                found = stragglers(run, least=given.least).to_pylist()
            except EtudeError as problem:
                print(f"{name:50} {how:16} refused: {str(problem).splitlines()[0]}", flush=True)
                continue
            seen += 1
            quiet += not found
            told = "silent" if not found else ""
            for row in found:
                last, of = comes_last(run, row["rank"]) if row["kind"] in ("slow_rank", "late_host") else (0, 0)
                wrong += 2 * last <= of
                told += f"{row['kind']} {row['ranks']}, last in {last} of {of}: {row['evidence'][:90]}; "
            print(f"{name:50} {how:16} {len(files)} ranks: {told}", flush=True)
    print(f"\n{seen} runs, {quiet} silent; findings on ranks that do not come last in most steps: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
