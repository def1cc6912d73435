"""Every recorded run of ASTRA-sim, run again: equal to the nanosecond or not.

    python benchmarks/parity_astra.py [--traces FOLDER] [--full-events] [--only TABLE ...]

Needs the oracle beside the checkout or in $ETUDE_SHARED. `--traces` holds the unpacked traces of `llm/traces`; without
it they are unpacked into a temporary folder.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from astra_oracle import (
    COLLECTIVE_TABLES,
    Case,
    collective_cases,
    differences,
    example_cases,
    left_out,
    llm_cases,
    oracle,
    read_timeline,
    semantics_cases,
    simulate,
    timelines,
)
from etude.base.errors import EtudeError
from etude.run.astra import AstraResult


def check(cases: Iterable[Case], by_message: bool = False) -> tuple[int, int, list[str], list[str]]:
    """Equal rows, rows that must be equal, what differs, and rows that must fail but do not."""
    equal = total = 0
    wrong, unrefused = [], []
    for case in cases:
        try:
            found = differences(case, simulate(case, by_message=by_message))
        except EtudeError as error:
            found = [f"{type(error).__name__}: {str(error).splitlines()[0]}"]
            if not case.finishes and error.exit_code == 1:
                continue
        if not case.finishes:
            unrefused.append(case.name)
            continue
        total += 1
        equal += not found
        wrong += [f"{case.name}: {'; '.join(found)}"] if found else []
    return equal, total, wrong, unrefused


def nodes_of(result: AstraResult) -> np.ndarray:
    """Rows of rank, node id, node type, issue and finish, as timelines have them."""
    rows = []
    for rank in result.job.ranks.tolist():
        trace, (start_ns, end_ns) = result.job.trace(rank), result.timing.block(rank)
        ids, types = trace.source_id.astype(np.int64), trace.kind.astype(np.int64) - 1
        rows.append(np.stack([np.full(len(trace), rank), ids, types, start_ns, end_ns], axis=1))
    return np.concatenate(rows)


def check_timelines(
    root: Path, cases: dict[tuple[str, str], Case], by_message: bool = False
) -> tuple[int, int, list[str]]:
    """Nodes equal in issue and finish over the recorded timelines of these runs."""
    equal = total = 0
    wrong = []
    for trace, backend, path in timelines(root):
        if (trace, backend) not in cases:
            continue
        case = cases[trace, backend]
        mine = nodes_of(simulate(case, by_message=by_message))
        recorded = read_timeline(path)
        mine, recorded = (t[np.lexsort((t[:, 1], t[:, 0]))] for t in (mine, recorded))
        same = (mine == recorded).all(axis=1) if mine.shape == recorded.shape else np.zeros(len(recorded), bool)
        equal, total = equal + int(same.sum()), total + len(recorded)
        if not same.all():
            wrong.append(f"{path.name}: {len(recorded) - int(same.sum())} of {len(recorded)} nodes differ")
    return equal, total, wrong


def unpack(root: Path, into: Path) -> Path:
    for archive in sorted((root / "llm/traces").glob("*.tar.xz")):
        with tarfile.open(archive) as tar:
            tar.extractall(into, filter="data")
    return into


def report(name: str, equal: int, total: int, wrong: list[str], seconds: float) -> None:
    print(f"{name:24} {equal:6} of {total:6} equal  {seconds:7.1f} s", flush=True)
    for line in wrong[:20]:
        print(f"    {line}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--full-events", action="store_true", help="run every message as an event")
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args(argv)
    root = oracle()
    if root is None:
        print("the oracle folder is not at hand", file=sys.stderr)
        return 2
    bad = rows = same = 0
    with tempfile.TemporaryDirectory() as scratch:
        tables = {name: lambda name=name: collective_cases(root, name) for name in COLLECTIVE_TABLES}
        tables["semantics"] = lambda: semantics_cases(root)
        tables["upstream_examples"] = lambda: example_cases(root)
        if not args.only or "llm_traces" in args.only:
            traces = args.traces or unpack(root, Path(scratch))
            tables["llm_traces"] = lambda: llm_cases(root, traces)
        for name, cases in tables.items():
            if args.only and name not in args.only:
                continue
            start = time.perf_counter()
            equal, total, wrong, unrefused = check(cases(), args.full_events)
            report(name, equal, total, wrong, time.perf_counter() - start)
            if unrefused:
                print(f"    {len(unrefused)} rows that hang or crash there gave a result: {', '.join(unrefused[:20])}")
            bad += len(wrong) + len(unrefused)
            rows, same = rows + total, same + equal
        if "llm_traces" in tables and (not args.only or "llm_traces" in args.only):
            flat = {
                (c.row["trace"], c.backend): c for c in tables["llm_traces"]() if c.row["network"].count("Switch") == 1
            }
            start = time.perf_counter()
            equal, total, wrong = check_timelines(root, flat, args.full_events)
            report("timelines (nodes)", equal, total, wrong, time.perf_counter() - start)
            bad += len(wrong)
    if not args.only:
        skipped = list(left_out(root))
        rows += len(skipped)
        print(f"{'all rows':24} {same:6} of {rows:6} equal, {1 - same / rows:.2%} exceptions:")
        for name, why in skipped:
            print(f"    {name}: not run: {why}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
