"""Ranges of what searches find: those of the commands, or why there are none; worked by hand."""

from etude.decide.search.found import Found
from etude.decide.search.ranges import metrics_with_ranges, with_ranges, without_unknown


def test_scores_that_are_figures_ask_for_their_ranges():
    assert metrics_with_ranges({"step": "step_time_ns", "both": "a + b", "first": "ttft_s.mean"}) == {
        "step": "step_time_ns",
        "both": "a + b",
        "first": "ttft_s.mean",
        "step_low": "low['step_time_ns']",
        "step_high": "high['step_time_ns']",
        "step_basis": "basis['step_time_ns']['text']",
        "first_low": "low['ttft_s']",
        "first_high": "high['ttft_s']",
        "first_basis": "basis['ttft_s']['text']",
    }


def test_columns_that_no_command_has_are_left_out():
    rows = [{"tp": 1, "step": 5, "step_low": None, "step_high": None, "step_basis": "no evidence"}]
    assert without_unknown(rows, {"step": "step_time_ns"}) == [{"tp": 1, "step": 5, "step_basis": "no evidence"}]


def test_the_best_has_the_range_of_its_command():
    best = {"tp": 1, "step": 5, "step_low": 4.0, "step_high": 6.0, "step_basis": "80 rows"}
    found = with_ranges(Found(best=best, frontier=[best], tried=1, rows=[best]), "commands", {"step": 1})
    assert found.more == {
        "low": {"step": 4.0},
        "high": {"step": 6.0},
        "basis": {"step": {"evidence": True, "text": "9 of 10, by 80 rows"}},
    }
    assert found.rows == [{"tp": 1, "step": 5, "step_low": 4.0, "step_high": 6.0}]
    assert found.notes == ("range: 9 of 10, by 80 rows",)


def test_a_search_that_was_never_measured_says_so():
    found = with_ranges(Found(best={"time_ns": 5}, frontier=[], tried=1), "placement", {"time_ns": 1})
    assert found.more["low"] == {"time_ns": None}
    assert found.notes[0].startswith("range: no evidence for the time_ns of placements")
    assert with_ranges(Found(best={"step_time_ns": 5}, frontier=[], tried=1), "plans", {"step_time_ns": 1}).more == {}
