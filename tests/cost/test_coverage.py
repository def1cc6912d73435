"""The ranges of the package against the errors that were kept: counted here in a few lines of their own."""

import csv
import math
from collections import defaultdict
from pathlib import Path

import pytest

from etude.cost.estimates import EstimateCase, estimate_of
from etude.cost.estimates.evidence import evidence

ERRORS = Path(__file__).parents[2] / "benchmarks" / "held_out_errors.csv"
WHOLE = {"gpus": int, "unstated": int, "named": lambda text: text == "1", "batch": float, "elements": float}


def rows() -> list[tuple[dict[str, str], EstimateCase]]:
    with ERRORS.open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    names = EstimateCase.__slots__
    return [(row, EstimateCase(**{n: WHOLE.get(n, str)(row[n]) for n in names})) for row in found]


def test_ranges_hold_the_rows_that_they_were_fitted_to_as_often_as_they_say() -> None:
    """Not the bar, which is for sources left out (`benchmarks/validate_bands.py`): each source is in the table here."""
    held = defaultdict[str, list[tuple[bool, bool]]](list)
    for row, case in rows():
        error, found = float(row["error"]), estimate_of(100.0, case)
        if found.low is not None:
            measured = 100.0 / math.exp(error)
            held[case.figure].append(
                (found.low <= measured <= found.high, found.low_50 <= measured <= found.high_50)  # type: ignore[operator]
            )
    for figure, of in held.items():
        if len(of) >= 40:
            nine, half = (sum(one[i] for one in of) / len(of) for i in (0, 1))
            assert 0.85 <= nine <= 0.99, figure
            assert 0.40 <= half <= 0.65, figure


def test_counts_of_the_table_are_those_of_the_rows() -> None:
    known, count = evidence(), defaultdict[tuple[str, str], list[str]](list)
    for row, case in rows():
        count[case.figure, case.kind].append(row["source"])
    for (figure, kind), sources in count.items():
        its = known[figure].kinds[kind]
        assert (its.rows, its.sources) == (len(sources), len(set(sources)))
        assert its.pooled == (len(sources) < 40 or len(set(sources)) < 5)


@pytest.mark.parametrize("figure", ["step", "tokens per second", "time of a collective"])
def test_every_row_behind_a_range_is_within_what_the_range_is_for(figure: str):
    for row, case in rows():
        if case.figure == figure and evidence()[figure].kinds[case.kind].rows >= 5:
            assert estimate_of(1.0, case).basis["evidence"], row
