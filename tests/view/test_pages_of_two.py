"""Pages of two runs: every number says what it is, and none means two things."""

import numpy as np

from asked_pages import read, twice_named
from etude.tell.report.compare import comparison
from etude.tell.view.page import render
from summed_steps import noise, run_of


def test_every_number_of_a_page_of_two_runs_has_its_expression() -> None:
    slower = noise(6, 4, 2)
    slower *= 1.2
    shown = read(render(comparison((run_of(noise(6, 4)), "first"), (run_of(slower, np.full((6, 4), 30.0)), "second"))))
    assert shown.bare == []
    assert len(shown.numbers) > 20
    assert {query for _, _, query, _ in shown.numbers if "run[0].span_ns" in query} >= {
        "a.run[0].span_ns",
        "b.run[0].span_ns",
    }


def test_no_name_means_the_first_run_and_the_second() -> None:
    page = render(comparison((run_of(noise(6, 4)), "first"), (run_of(noise(6, 4, 3) * 1.3), "second")))
    assert twice_named(page) == []
