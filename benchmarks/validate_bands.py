"""How often ranges hold what was measured: each source, model and device is left out of the table of ranges once.

    python benchmarks/validate_bands.py --scored /tmp/scored --outcomes /tmp/outcomes.json

Rows and folders are those of `fit_bands.py`. The parts that are left out are whole sources, whole models and whole
devices, so there is nothing to choose: the ranges of a part's rows are fitted to all other parts. Rows of a device that
no other part has, and no relative of it, have no range; they are counted apart. A range that holds nine of ten should
hold 85% to 97% of the rows of a kind, one that holds half 40% to 65%; kinds with fewer than 40 rows are pooled.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from fit_bands import ENOUGH, HeldOutRow, all_rows, arguments, by_figure, fit_evidence, label

from etude.cost.estimates import Estimate, estimate_of

PARTS = ("source", "model", "device")
NINE, HALF = (0.85, 0.97), (0.40, 0.65)
SMALL = "kinds of few rows"


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
    found = []
    for name in dict.fromkeys(label(row, part) for row in rows):
        others = [row for row in rows if label(row, part) != name]
        known = {figure: fit_evidence(figure, others)} if others else {}
        found += [Checked(row, estimate_of(1.0, row.case, known)) for row in rows if label(row, part) == name]
    return found


def line(name: str, part: str, rows: Sequence[Checked]) -> str:
    known = [row for row in rows if row.known]
    if not known:
        return f"{name:58s} {part:7s} {0:5d} rows   {len(rows):4d} without evidence"
    nine, half = (float(np.mean([row.holds(short) for row in known])) for short in (False, True))
    width = float(np.median([row.range.most or 0.0 for row in known]))
    ok = len(known) < ENOUGH or (NINE[0] <= nine <= NINE[1] and HALF[0] <= half <= HALF[1])
    without = f"{len(rows) - len(known):4d} without evidence"
    held = f"nine of ten: {nine:6.1%}   half: {half:6.1%}   median range +{np.expm1(width):.0%}"
    return f"{name:58s} {part:7s} {len(known):5d} rows   {without}   {held}{'' if ok else '   outside'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    found = by_figure(all_rows(parser.parse_args()))
    outside = kinds = 0
    for part in PARTS:
        for figure, rows in found.items():
            groups: dict[str, list[Checked]] = defaultdict(list)
            for one in checked(figure, rows, part):
                groups[one.row.case.kind].append(one)
            few = [one for of in groups.values() if len(of) < ENOUGH for one in of]
            groups = {kind: of for kind, of in sorted(groups.items()) if len(of) >= ENOUGH}
            for kind, of in {**groups, **({SMALL: few} if few else {})}.items():
                said = line(f"{figure}: {kind}", part, of)
                enough = sum(one.known for one in of) >= ENOUGH
                kinds, outside = kinds + enough, outside + (said.endswith("outside"))
                print(said)
    print(f"{kinds - outside} of {kinds} kinds with at least {ENOUGH} rows hold their parts of them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
