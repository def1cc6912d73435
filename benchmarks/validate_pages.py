"""Every number on the pages of all recordings, worked out again from the expression that the page gives for it.

    python benchmarks/validate_pages.py
    python benchmarks/validate_pages.py --only h200/gpt --show

Each recording is opened twice: for its page, and for the tables over which `tests/asked_pages.py` works out the
expressions again, by another evaluation. A number without an expression counts as a difference, and so does a name that
stands for two values on one page. Drawings, their scales and the tips of their points are not read.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from all_reports import REFUSED, Input, inputs, opened, shared

from asked_pages import Again, counted, differences, twice_named
from etude.analyse.devices import device_of
from etude.base.errors import EtudeError
from etude.model.run import Run
from etude.tell.report.compose import report
from etude.tell.report.subject import Subject
from etude.tell.view.page import render


def run_of(source: Input) -> Run | None:
    job = opened(source)
    return None if job.timing is None else Run(job, job.timing)


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--only", default="", help="recordings whose name contains this")
    asked.add_argument("--show", action="store_true", help="each difference")
    given = asked.parse_args()
    pages = numbers = wrong = twice = 0
    began = time.perf_counter()
    for source in inputs(shared()):
        if given.only not in source.name or any(part in source.name for part in REFUSED):
            continue
        try:
            run = run_of(source)
            if run is None:
                continue
            page = render(report(run, device=device_of(run.job)))
        except EtudeError as problem:
            print(f"{source.name}: no page: {problem.problem}")
            continue
        again = run_of(source)
        assert again is not None
        subject = Subject(again, again.job.name, device=device_of(again.job))
        found = list(differences(page, Again(subject.table, subject.gain)))
        names = twice_named(page)
        pages, numbers, wrong, twice = pages + 1, numbers + counted(page), wrong + len(found), twice + len(names)
        print(f"{source.name}: {counted(page)} numbers, {len(found)} differences, {len(names)} names of two values")
        if given.show:
            for text in [*found, *names]:
                print("   ", text)
    print(f"{pages} pages, {numbers:,} numbers, {wrong} differences, {twice} names that stand for two values")
    print(f"{time.perf_counter() - began:.0f} s")
    return int(bool(wrong or twice))


if __name__ == "__main__":
    sys.exit(main())
