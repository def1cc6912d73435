"""How often ranges hold what was measured: each source, model and device is left out of the table of ranges once.

    python benchmarks/validate_bands.py             # every kind, with sources, models and devices left out
    python benchmarks/validate_bands.py --table     # as the tables of docs/stacks.md

The errors are those of `held_out_errors.csv`. The parts that are left out are whole sources, whole models and whole
devices, so there is nothing to choose: the ranges of a part's rows are fitted to all other parts. Only which kinds are
pooled is decided from all rows, by their number and that of their sources. Rows of a device that no other part has, and
no relative of it, or that are far from all rows of other parts, have no range; they are counted apart. A range that
holds nine of ten should hold 85% to 97% of the rows of a kind, one that holds half 40% to 65%. Kinds that are pooled
count together; each of them is printed below its pool.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from fit_bands import ENOUGH, by_figure, fit_evidence, label, own_kinds
from held_out_errors import HeldOutRow, read_rows

from etude.cost.estimates import Estimate, estimate_of
from etude.cost.estimates.evidence import words_of

PARTS = ("source", "model", "device")
NINE, HALF = (0.85, 0.97), (0.40, 0.65)


@dataclass(frozen=True, slots=True)
class Checked:
    """A row with the range that other parts give it."""

    row: HeldOutRow
    range: Estimate

    @property
    def known(self) -> bool:
        return self.range.most is not None

    def holds(self, half: bool = False) -> bool:
        width = self.range.half if half else self.range.most
        return width is not None and abs(self.row.error) <= width


def checked(figure: str, rows: Sequence[HeldOutRow], part: str) -> list[Checked]:
    """Each row with the range from rows of other sources, models or devices."""
    found, own = [], own_kinds(rows)
    for name in dict.fromkeys(label(row, part) for row in rows):
        others = [row for row in rows if label(row, part) != name]
        known = {figure: fit_evidence(figure, others, own)} if others else {}
        found += [Checked(row, estimate_of(1.0, row.case, known)) for row in rows if label(row, part) == name]
    return found


@dataclass(frozen=True, slots=True)
class Coverage:
    """Of the rows of a kind, or of those that are pooled."""

    figure: str
    kind: str
    """Empty: all kinds that are pooled."""
    rows: tuple[Checked, ...]
    of_pool: bool = False

    @property
    def known(self) -> list[Checked]:
        return [row for row in self.rows if row.known]

    @property
    def counts(self) -> bool:
        """For or against the ranges."""
        return len(self.known) >= ENOUGH and not self.of_pool

    def held(self, half: bool = False) -> float:
        return float(np.mean([row.holds(half) for row in self.known]))

    @property
    def both(self) -> bool:
        return NINE[0] <= self.held() <= NINE[1] and HALF[0] <= self.held(half=True) <= HALF[1]

    @property
    def name(self) -> str:
        kinds = len({row.row.case.kind for row in self.rows})
        return words_of(self.kind) if self.kind else f"{kinds} kind{'s' if kinds > 1 else ''} of few rows or sources"


def coverages(rows: Sequence[HeldOutRow], part: str) -> Iterator[Coverage]:
    """Of each kind with quantiles of its own, of the pool, and of each kind in it."""
    for figure, of in by_figure(rows).items():
        own, kinds = own_kinds(of), defaultdict[str, list[Checked]](list)
        for one in checked(figure, of, part):
            kinds[one.row.case.kind].append(one)
        yield from (Coverage(figure, kind, tuple(kinds[kind])) for kind in sorted(kinds) if kind in own)
        few = {kind: kinds[kind] for kind in sorted(kinds) if kind not in own}
        if few:
            yield Coverage(figure, "", tuple(one for found in few.values() for one in found))
        if len(few) > 1:
            yield from (Coverage(figure, kind, tuple(found), of_pool=True) for kind, found in few.items())


def line(one: Coverage, part: str) -> str:
    name = f"{'    ' if one.of_pool else ''}{one.figure}: {one.name}"
    known = one.known
    if not known:
        return f"{name:70s} {part:7s} {0:5d} rows   {len(one.rows):4d} without evidence"
    width = float(np.median([row.range.most or 0.0 for row in known]))
    without = f"{len(one.rows) - len(known):4d} without evidence"
    held = f"nine of ten: {one.held():6.1%}   half: {one.held(half=True):6.1%}   median range +{np.expm1(width):.0%}"
    outside = "   outside" if one.counts and not one.both else ""
    return f"{name:70s} {part:7s} {len(known):5d} rows   {without}   {held}{outside}"


def table_row(one: Coverage) -> str:
    """Of the page."""
    known = one.known
    sources = len({row.row.source for row in one.rows})
    name = f"{one.figure}: {one.name}" if not one.of_pool else f"of these: {one.name}"
    held = [f"{one.held():.1%}", f"{one.held(half=True):.1%}"] if known else ["", ""]
    width = f"+{np.expm1(float(np.median([row.range.most or 0.0 for row in known]))):.0%}" if known else ""
    both = ("yes" if one.both else "no") if one.counts else ""
    cells = [name, str(len(known)), str(len(one.rows) - len(known)), str(sources), *held, width, both]
    return "| " + " | ".join(cells) + " |"


HEAD = """\
| figure: kind | rows with a range | without | sources | nine of ten | half | range in the median | both hold |
|---|---|---|---|---|---|---|---|"""


def parts_table(found: dict[str, list[Coverage]]) -> Iterator[str]:
    """Of kinds that count, what holds with each source, model and device left out."""
    parts = [f"{part}: rows | nine of ten | half" for part in found]
    yield f"| figure: kind | {' | '.join(parts)} |"
    yield "|---" * (1 + 3 * len(found)) + "|"
    cells: dict[str, dict[str, Coverage]] = defaultdict(dict)
    for part, of in found.items():
        for one in of:
            if one.counts:
                cells[f"{one.figure}: {one.name}"][part] = one
    for name, its in cells.items():
        row = [name]
        for part in found:
            one = its.get(part)
            row += (
                ["", "", ""]
                if one is None
                else [f"{len(one.known)}", f"{one.held():.1%}", f"{one.held(half=True):.1%}"]
            )
        yield "| " + " | ".join(row) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="as tables of Markdown")
    table = parser.parse_args().table
    rows = [row for part in read_rows().values() for row in part]
    if table:
        print(HEAD)
    found = {part: list(coverages(rows, part)) for part in PARTS}
    for part, of in found.items():
        for one in of:
            if not table:
                print(line(one, part))
            elif part == PARTS[0]:
                print(table_row(one))
    if table:
        print("", *parts_table(found), "", sep="\n")
    for part, of in found.items():
        said = [one for one in of if one.counts]
        held = f"{sum(one.both for one in said)} of {len(said)} kinds with at least {ENOUGH} rows"
        print(f"{held} hold their parts of them, with each {part} left out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
