"""Errors worked by hand."""

import pytest

from etude.base.errors import EtudeError
from etude.decide.score.scoring import numbers
from etude.decide.score.summary import errors, summary


def row(number: int, measured: float, predicted: float, **more: float) -> dict:
    return {"row": number, "measured": {"step_s": measured, **more}, "predicted": {"step_s": predicted}}


def test_medians_are_of_absolute_errors_and_the_bias_is_of_signed_ones():
    """Errors +10%, -20%, +30%, -50%: absolute 10, 20, 30, 50, so 25 at the median and 44 at 2.7 places of 3; signed
    -50, -20, 10, 30, so -5."""
    rows = [row(1, 10, 11), row(2, 10, 8), row(3, 10, 13), row(4, 10, 5), {"row": 5, "refused": "no"}]
    found = summary(rows)
    assert found["step_s"]["rows"] == 4
    assert found["step_s"]["median"] == pytest.approx(0.25)
    assert found["step_s"]["p90"] == pytest.approx(0.44)
    assert found["step_s"]["bias"] == pytest.approx(-0.05)
    assert found["refused"] == {"no": 1}


def test_figures_without_both_values_do_not_count():
    rows = [row(1, 0, 1), row(2, 10, float("nan")), row(3, 4, 5, ttft_s=1.0)]
    assert errors(rows) == {"step_s": [0.25]}


def test_nothing_was_predicted():
    assert summary([{"row": 1, "refused": "a"}, {"row": 2, "refused": "b"}, {"row": 3, "refused": "b"}]) == {
        "refused": {"b": 2, "a": 1}
    }


def test_numbers_of_rows():
    assert numbers("3,7-9") == [3, 7, 8, 9]
    assert numbers("2, 2-3") == [2, 3]
    for text in ("", "0", "9-7", "a", "1-", "-1"):
        with pytest.raises(EtudeError, match="does not name rows"):
            numbers(text)


def test_a_profile_that_is_farther_off_than_the_catalogue_is_named():
    from pathlib import Path

    from etude.decide.score.scoring import Scored

    def row(ttft: float, tpot: float) -> dict[str, object]:
        return {"row": 1, "measured": {"ttft_s": 1.0, "tpot_s": 1.0}, "predicted": {"ttft_s": ttft, "tpot_s": tpot}}

    found = Scored(
        file=Path("run"),
        kind="runs",
        rows=[row(1.2, 1.01), {"row": 2, "refused": "no room"}],
        without_profile=[row(0.9, 1.1), row(5.0, 5.0)],
    )
    assert found.farther() == {"ttft_s": (pytest.approx(0.2), pytest.approx(0.1))}
    assert found.record()["without_profile"]["ttft_s"]["rows"] == 2
    assert Scored(file=Path("run"), kind="runs", rows=[row(2.0, 2.0)]).farther() == {}
