"""The timeline of many ranks in a real browser: choosing ranks, and summing up an area."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import browser
import etude
from etude.model.build import TraceBuilder, job_of
from etude.model.run import Run
from etude.model.schema import Collective, Kind
from etude.tell.report.compose import report
from etude.tell.report.subject import Subject
from etude.tell.view.page import render
from timed_jobs import timing_of

RANKS = 20
US = 1000


def run() -> Run:
    """Each rank, in µs: `outer` 0..100 that calls `inner` 20..40, `gemm` 0..100, `reduce` 50..150, and a copy 150..160;
    on rank r `tail` for r more."""
    builders, starts, ends = [], [], []
    for rank in range(RANKS):
        b = TraceBuilder()
        outer = b.add(Kind.COMP, "outer", cpu=1, thread=5)
        b.add(Kind.COMP, "inner", cpu=1, thread=5, parent=outer)
        b.add(Kind.COMP, "gemm", cpu=0, stream=7)
        b.add(Kind.COLL, "reduce", cpu=0, stream=9, collective=Collective.ALL_REDUCE, in_bytes=64)
        b.add(Kind.COMP, "direct_copy_kernel_cuda", cpu=0, stream=7)
        b.add(Kind.COMP, "tail", cpu=0, stream=7)
        builders.append(b)
        starts.append([us * US for us in (0, 20, 0, 50, 150, 160)])
        ends.append([us * US for us in (100, 40, 100, 150, 160, 160 + rank)])
    timing = timing_of(starts, ends, offset=[0] * RANKS)
    return Run(job_of("twenty", builders), timing)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("area") / "page.html"
    out.write_text(render(report(run())))
    return out


@pytest.fixture(scope="module")
def chromium(page: Path) -> Iterator[browser.Browser]:
    program = browser.find()
    if program is None:
        pytest.skip("needs a headless Chromium (apt-get install chromium)")
    with browser.Browser(program) as found:
        yield found


TIMELINE = "document.querySelector('.timeline').timeline"


def opened(chromium: browser.Browser, page: Path) -> browser.Browser:
    chromium.problems.clear()
    chromium.open(page)
    chromium.evaluate("document.querySelector('.timeline').scrollIntoView({behavior: 'instant'})")
    return chromium


def shown(chromium: browser.Browser) -> list[str]:
    found: list[str] = chromium.evaluate(f"{TIMELINE}.heads.map(h => h.label)")
    return found


def choose(chromium: browser.Browser, text: str) -> None:
    chromium.evaluate(f"(i => {{ i.value = '{text}'; i.dispatchEvent(new Event('input')); }})"
                      "(document.querySelector('.ranks input'))")  # fmt: skip


def sums(chromium: browser.Browser) -> dict[str, tuple[float, int]]:
    area: dict[str, Any] = chromium.evaluate(f"{TIMELINE}.area.sorts")
    return {name: (value["ns"] / US, value["count"]) for name, value in area.items()}


def test_ranks_can_be_chosen_and_are_in_order(page: Path, chromium: browser.Browser) -> None:
    found = opened(chromium, page)
    first = [int(label.removeprefix("rank ")) for label in shown(found)]
    assert len(first) == 16 and first == sorted(first)
    assert found.evaluate("document.querySelector('.ranks summary').textContent") == "Ranks: 16 of 20"
    choose(found, "18-19, 2")
    assert shown(found) == ["rank 2", "rank 18", "rank 19"]
    found.click('.ranks [data-group="rank 18"]')
    assert shown(found) == ["rank 2", "rank 19"]
    found.click('.ranks [data-do="none"]')
    assert shown(found) == []
    found.click('.ranks [data-do="all"]')
    assert shown(found) == [f"rank {r}" for r in range(RANKS)]
    assert found.problems == []


def test_what_is_in_view_is_summed_up_by_category(page: Path, chromium: browser.Browser) -> None:
    """Ranks 2, 18 and 19: devices only, as at first with many ranks; their tails are 2, 18 and 19."""
    found = opened(chromium, page)
    choose(found, "18-19, 2")
    found.evaluate("document.querySelector('canvas.main').focus()")
    found.key("m")
    assert sums(found) == {"compute": (339, 6), "communication": (300, 3), "copy": (30, 3)}
    told = found.evaluate("document.querySelector('.area').innerText")
    assert "179 µs selected" in told and "6 lanes" in told and "339 µs" in told and "reduce" in told
    found.key("Escape")
    assert found.evaluate("document.querySelector('.area').hidden") is True
    assert found.problems == []


def test_part_of_a_slice_counts_and_calls_count_once(page: Path, chromium: browser.Browser) -> None:
    """From 25 to 75 µs of one rank with its host: the call, not what it calls; half of the product, 25 of 100 of the
    reduction."""
    found = opened(chromium, page)
    choose(found, "7")
    found.click('[data-do="host"]')
    found.evaluate(f"{TIMELINE}.sum(25000, 75000)")
    assert sums(found) == {"host": (50, 1), "compute": (50, 1), "communication": (25, 1)}
    inner = found.evaluate(f"(t => (r => [r.y, r.y + r.h])(t.rows.find(r => r.nested && !r.hidden)))({TIMELINE})")
    found.evaluate(f"{TIMELINE}.sum(75000, 25000, {inner[1] - 1}, {inner[0] + 1})")
    assert sums(found) == {"host": (15, 1)}


def test_an_area_is_dragged_with_shift_or_by_the_axis(page: Path, chromium: browser.Browser) -> None:
    found = opened(chromium, page)
    choose(found, "3-4")
    left, top, width = found.evaluate("(b => [b.left, b.top, b.width])"
                                      "(document.querySelector('canvas.main').getBoundingClientRect())")  # fmt: skip
    rows = found.evaluate(f"{TIMELINE}.rows.filter(r => !r.hidden).map(r => [r.y, r.h])")
    y = top + 24 + rows[0][0] + rows[0][1] / 2
    drag(found, (left + 149, y), (left + width - 2, y), modifiers=8)
    area = found.evaluate(f"{TIMELINE}.area")
    assert area["lanes"] == 1
    assert {name: count for name, (_, count) in sums(found).items()} == {"compute": 2, "copy": 1}
    assert sums(found)["compute"][0] == pytest.approx(103, rel=0.02)
    assert found.evaluate(f"{TIMELINE}.from") == 0  # it was not moved
    drag(found, (left + 149, top + 8), (left + width - 2, top + 12))
    assert found.evaluate(f"{TIMELINE}.area.lanes") == 4
    assert sums(found)["communication"] == (pytest.approx(200, rel=0.02), 2)
    found.click('[data-do="area"]')
    drag(found, (left + 149, y), (left + 160, y))
    assert found.evaluate(f"{TIMELINE}.area.lanes") == 1
    assert found.problems == []


def drag(found: browser.Browser, a: tuple[float, float], b: tuple[float, float], modifiers: int = 0) -> None:
    found.mouse("mousePressed", *a, button="left", clickCount=1, modifiers=modifiers)
    for part in (0.3, 0.7, 1.0):
        x, y = (p + part * (q - p) for p, q in zip(a, b, strict=True))
        found.mouse("mouseMoved", x, y, button="left", buttons=1, modifiers=modifiers)
    found.mouse("mouseReleased", *b, button="left", clickCount=1, modifiers=modifiers)


def test_the_ranks_drawn_first_are_spread_over_all() -> None:
    """Forty ranks of one program, of which the first three have times of their own: one of each kind, the others evenly
    between, with the last."""
    builders = []
    for _ in range(40):
        b = TraceBuilder()
        b.add(Kind.COMP, "gemm", cpu=0, stream=7)
        builders.append(b)
    timing = replace(
        timing_of([[0]] * 4, [[100 + k] for k in range(4)], offset=[0] * 4),
        block_of=np.minimum(np.arange(40), 3).astype(np.int32), clock_offset_ns=np.zeros(40, np.int64),
    )  # fmt: skip
    first = Subject(Run(etude.extend.fold(job_of("forty", builders)), timing), "forty").drawn()
    assert len(first) == 16 and {0, 1, 2, 3, 39} <= set(first)
