"""Damaged files of every kind against every reader, each case within a limit of time and memory.

    python benchmarks/fuzz_readers.py --cases 1000            # for each of the readers
    python benchmarks/fuzz_readers.py --only kineto --first 5000 --cases 200

A case is read, or refused with an error of Etude's. Anything else fails: another exception, a crash, a case that takes
longer than the limit or more memory. Cases run in a process of their own, which is replaced when one ends it. Cases and
examples are in `tests/fuzz_readers.py`; a case is known by its number. Exit code 1 if there is a failure.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

LIMIT_S, LIMIT_BYTES = 10.0, 1 << 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000, help="for each reader")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", default="", help="readers, with commas between them")
    asked = parser.parse_args()
    import fuzz_readers as fuzz

    failures: Counter[str] = Counter()
    shown: dict[str, int] = {}
    total = 0
    with tempfile.TemporaryDirectory() as made:
        every = [
            reader for reader in fuzz.readers(Path(made)) if not asked.only or reader.name in asked.only.split(",")
        ]
        print(f"{'reader':16} {'cases':>7} {'read':>7} {'refused':>8} {'failed':>7} {'slowest s':>10}")
        for reader in every:
            counts, slowest, found = _run(reader, asked.first, asked.cases)
            failed = sum(len(cases) for cases in found.values())
            total += asked.cases
            for what, cases in found.items():
                failures[f"{reader.name}: {what}"] += len(cases)
                shown.setdefault(f"{reader.name}: {what}", cases[0])
            shares = f"{counts['read']:7,} {counts['refused']:8,} {failed:7,}"
            print(f"{reader.name:16} {asked.cases:7,} {shares} {slowest:10.2f}", flush=True)
    limits = f"limits {LIMIT_S:g} s and {LIMIT_BYTES >> 20} MiB more than at the start"
    print(f"{total:,} cases, {sum(failures.values()):,} failures; {limits}")
    for what, count in failures.most_common():
        print(f"  {count} x {what} (case {shown[what]})")
    return 1 if failures else 0


def _run(reader: Any, first: int, cases: int) -> tuple[Counter[str], float, dict[str, list[int]]]:
    counts: Counter[str] = Counter()
    found: dict[str, list[int]] = {}
    slowest, case, end = 0.0, first, first + cases
    while case < end:
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=_child, args=(reader, case, end, theirs))
        child.start()
        theirs.close()
        while case < end:
            what = "took too long"
            try:
                if ours.poll(LIMIT_S * 6):  # the child's own alarm comes first, unless compiled code holds it up
                    what, seconds = ours.recv()
                    slowest = max(slowest, seconds)
                else:
                    child.kill()
            except EOFError:
                child.join()
                what = f"ended the process ({child.exitcode})"
            if what in ("read", "refused"):
                counts[what] += 1
            else:
                found.setdefault(what, []).append(case)
            case += 1
            if what.startswith(("took too long", "ended")):
                break
        ours.close()
        child.join(60)
    return counts, slowest, found


def _child(reader: Any, first: int, end: int, out: Connection) -> None:
    import fuzz_readers as fuzz

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _late)  # of CPU time: other processes of the machine do not count
    with tempfile.TemporaryDirectory() as folder:
        for case in range(first, end):
            data = fuzz.damaged(reader.example, case)
            start = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
            try:
                what = fuzz.attempt(reader, data, Path(folder))
            except _Late:
                what = f"took more than {LIMIT_S:g} s"
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            out.send((what, time.process_time() - start))


class _Late(BaseException):
    """Out of time."""


def _late(*_: object) -> None:
    raise _Late


if __name__ == "__main__":
    sys.exit(main())
