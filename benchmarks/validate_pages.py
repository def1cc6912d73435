"""Every number on the pages of all recordings, worked out again from the expression that the page gives for it.

    python benchmarks/validate_pages.py
    python benchmarks/validate_pages.py --only h200/gpt --show
    python benchmarks/validate_pages.py --only none --pairs 10

Each recording is opened twice: for its page, and for the tables over which `tests/asked_pages.py` works out the
expressions again, by another evaluation. A number without an expression counts as a difference, and so does a name that
stands for two values on one page. Then pages of two runs, neighbours in one folder (`--pairs`), in the same way.
Drawings, their scales and the tips of their points are not read. The page of a served stream is read in the same way;
those of fleets and of a world (`--outcomes 0`: none) have numbers without expressions: how many is printed, and these
are not worked out again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from all_reports import REFUSED, Input, inputs, opened, shared

from asked_pages import Again, AgainOfTwo, counted, differences, outcome_again, read, twice_named
from etude.analyse.compare import compare, similarity
from etude.analyse.devices import device_of
from etude.analyse.reasons import reasons
from etude.base.errors import EtudeError
from etude.model.run import Run
from etude.surface.cli import main as etude_main
from etude.tell.report.compare import IDLE, comparison
from etude.tell.report.compose import report
from etude.tell.report.subject import Subject
from etude.tell.view.page import render

OUTCOMES: Final = {
    "a served stream": "serve gpt2 --system dgx-h100 --rate 5 --count 40",
    "a fleet that trains": "fleet train llama3-8b --gpus 1024 --zero 3 --system dgx-h100 --days 2 --faults llama3 "
    "--checkpoint local:10min,remote:1h --recover restart",
    "jobs that share a cluster": "fleet share examples/cluster.yaml --jobs examples/jobs.csv --policy las",
    "a world": "world run examples/monday.yaml",
}
"""Whose pages are of an outcome, and the command that makes one."""
MOST_NODES: Final = 200_000
"""Largest run of a page of two."""


def run_of(source: Input) -> Run | None:
    job = opened(source)
    return None if job.timing is None else Run(job, job.timing)


def pages_of_two(most: int, show: bool) -> Iterator[tuple[int, int, int]]:
    """(numbers, differences, names of two values) of the pages of neighbours in one folder."""
    last: tuple[str, Input, Run] | None = None
    made = 0
    for source in inputs(shared()):
        if made >= most:
            return
        try:
            run = None if any(part in source.name for part in REFUSED) else run_of(source)
            folder = source.name.rpartition("/")[0]
            if run is None or run.job.nodes > MOST_NODES:
                continue
            before, last = last, (folder, source, run)
            if before is None or before[0] != folder:
                continue
            page = render(comparison((before[2], "first"), (run, "second")))
            one, two = (run_of(each) for each in (before[1], source))
        except EtudeError as problem:
            print(f"{source.name}: no page: {problem.problem}")
            continue
        last = None
        assert one is not None
        assert two is not None
        again = AgainOfTwo(*(asked_again(each) for each in (one, two)), both_of(one, two))
        found, names = list(differences(page, again)), twice_named(page)
        print(
            f"{before[1].name} and {source.name}: {counted(page)} numbers, {len(found)} differences, {len(names)} twice"
        )
        for text in [*found, *names] if show else ():
            print("   ", text)
        made += 1
        yield counted(page), len(found), len(names)


def asked_again(run: Run) -> Again:
    subject = Subject(run, run.job.name)
    return Again(subject.table, subject.gain)


def both_of(one: Run, two: Run) -> dict[str, list[dict[str, Any]]]:
    """The tables that compare two runs."""
    compared = compare(one, two)
    causes = [row for row in reasons(one, two).to_pylist() if row["delta_ns"]]
    causes = [row | {"what": IDLE[row["what"]]} if row["part"] == "idle" else row for row in causes]
    return {"reasons": causes, "compared": compared.to_pylist(), "similarity": [dict(similarity(compared))]}


def outcome_pages() -> Iterator[tuple[str, int, int, list[str]]]:
    """(whose page, numbers with an expression, without one, differences)."""
    root = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as folder:
        for name, command in OUTCOMES.items():
            place, page = Path(folder) / name.replace(" ", "-"), Path(folder) / "page.html"
            words = [str(root / word) if word.startswith("examples/") else word for word in command.split()]
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                failed = etude_main([*words, "-o", str(place)]) or etude_main(
                    ["report", str(place), "-o", str(page), "--force"]
                )
            if failed:
                print(f"page of {name}: not made (`etude {command}`)")
                continue
            text = page.read_text("utf-8")
            bare = len(read(text).bare)
            yield name, counted(text), bare, list(differences(text, outcome_again(place)))[bare:]


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--only", default="", help="recordings whose name contains this")
    asked.add_argument("--show", action="store_true", help="each difference")
    asked.add_argument("--pairs", type=int, default=12, help="pages of two runs")
    asked.add_argument("--outcomes", type=int, default=1, help="0: no pages of served streams, fleets and worlds")
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
    of_two = list(pages_of_two(given.pairs, given.show))
    compared, unlike, double = (sum(column) for column in zip(*of_two, strict=True)) if of_two else (0, 0, 0)
    print(f"{len(of_two)} pages of two runs, {compared:,} numbers, {unlike} differences, {double} names of two values")
    for name, known, bare, found in outcome_pages() if given.outcomes else ():
        unlike += len(found)
        print(f"page of {name}: {known} numbers with an expression, {len(found)} differences, {bare} texts without one")
        for text in found if given.show else ():
            print("   ", text)
    print(f"{time.perf_counter() - began:.0f} s")
    return int(bool(wrong or twice or unlike or double))


if __name__ == "__main__":
    sys.exit(main())
