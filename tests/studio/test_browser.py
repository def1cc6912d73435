"""The studio in a real browser, by mouse and by keyboard: nothing from elsewhere, no error, names as text."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import etude
from browser import Browser, find
from etude.model.job import Job
from etude.steps.asked.runs import RunSource
from etude.surface.cli import main
from etude.tell.studio import StudioServer, StudioSession
from etude.tell.studio.session import StudioRun, open_input
from later import later
from studio_stage import job_folder, session_of

later("starlette")
pytestmark = pytest.mark.skipif(find() is None, reason="no Chromium")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    program = find()
    assert program is not None
    with Browser(program, timeout_s=120) as browser:
        yield browser


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> StudioSession:
    return session_of(job_folder(tmp_path_factory.mktemp("studio")))


@pytest.fixture
def page(chromium: Browser, session: StudioSession) -> Iterator[Browser]:
    """The page, open; afterwards nothing was logged, and nothing asked for elsewhere."""
    server = StudioServer(session)
    server.start()
    chromium.problems.clear()
    chromium.requests.clear()
    visit(chromium, server.address)
    chromium.evaluate(f"window.studioAddress = {json.dumps(server.address)}")
    yield chromium
    server.stop()
    assert chromium.problems == []
    assert [one for one in chromium.requests if not one.startswith((server.address, "about:", "blob:"))] == []


def visit(browser: Browser, address: str, **state: Any) -> None:
    view = f"#{urllib.parse.quote(json.dumps(state))}" if state else ""
    browser.send("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
    browser.send("Page.navigate", url="about:blank")
    browser.send("Page.navigate", url=address + view)
    browser.wait("document.documentElement?.dataset.ready === 'true'")
    if state.get("view", "timeline") == "timeline":
        settled(browser)


def settled(browser: Browser) -> None:
    browser.wait("(() => { const line = window.studio?.timeline; return !!line && !line.waits && !!line.data; })()")


def window(browser: Browser) -> tuple[float, float]:
    first, last = browser.evaluate("[window.studio.timeline.first, window.studio.timeline.last]")
    return first, last


def press(browser: Browser, *keys: str) -> None:
    for key in keys:
        browser.key(key)


def test_zoom_pan_and_steps_by_the_keyboard_alone(page: Browser) -> None:
    before = window(page)
    press(page, "Tab")  # the link that skips to the view
    page.evaluate("document.querySelector('.lanes canvas').focus()")
    press(page, "+", "+")
    zoomed = window(page)
    assert zoomed[1] - zoomed[0] == pytest.approx((before[1] - before[0]) / 4, rel=0.01)
    press(page, "ArrowRight")
    assert window(page)[0] > zoomed[0]
    press(page, "Home")
    assert window(page)[1] - window(page)[0] >= (before[1] - before[0]) * 0.99
    press(page, "ArrowDown", "]")
    page.wait("window.studio.timeline.picked !== null")
    first = page.evaluate("window.studio.timeline.picked.start_ns")
    press(page, "]")
    page.wait(f"window.studio.timeline.picked.start_ns > {first}")
    press(page, "m", "]")
    page.wait("window.studio.timeline.picked.start_ns > window.studio.timeline.marks[0]")
    press(page, "m")
    page.wait("document.querySelector('.measured') !== null")
    settled(page)


def test_search_and_ranks(page: Browser) -> None:
    page.evaluate("""(() => { const box = document.querySelector('.timeline-view input[type=search]');
      box.value = 'all_reduce'; box.dispatchEvent(new Event('input')); })()""")
    page.wait("document.querySelectorAll('.hits button').length > 0")
    page.click(".hits button")
    page.wait("window.studio.timeline.picked?.name.includes('all_reduce')")
    page.evaluate("window.studio.timeline.pick('0, 3')")
    page.wait("new Set(window.studio.timeline.rows.map((row) => row.rank)).size === 2")
    assert page.evaluate("[...new Set(window.studio.timeline.rows.map((row) => row.rank))]") == [0, 3]
    page.evaluate("window.studio.timeline.pick('99')")
    page.wait("document.querySelector('#status').textContent.includes('rank 99')")
    settled(page)


def test_a_range_by_the_mouse_has_its_breakdown(page: Browser) -> None:
    box = page.evaluate(
        "(() => { const b = document.querySelector('.lanes canvas').getBoundingClientRect();"
        " return [b.left, b.top]; })()"
    )
    y = box[1] + 60
    page.mouse("mousePressed", box[0] + 300, y, button="left", modifiers=8, clickCount=1)
    page.mouse("mouseMoved", box[0] + 700, y, button="left", modifiers=8)
    page.mouse("mouseReleased", box[0] + 700, y, button="left", modifiers=8, clickCount=1)
    page.wait("document.querySelector('.measured') !== null")
    assert page.evaluate("document.querySelectorAll('.panel tbody tr').length") > 3


def test_three_knobs_give_the_step_of_the_command(page: Browser, session: StudioSession) -> None:
    page.key("4")
    page.wait("document.querySelector('main').dataset.ready === 'true'")
    for name, value in (("bandwidth", 2), ("kernels", 1.5), ("slow", 1.2)):
        page.evaluate(f"""(() => {{ const box = document.querySelector('[data-knob="{name}"]');
          box.value = {value}; box.dispatchEvent(new Event('change')); }})()""")
    page.wait("document.querySelector('main').dataset.ready === 'true'")
    shown = int(page.evaluate("document.querySelector('#after').dataset.ns"))
    state = {"bandwidth": 2, "kernels": 1.5, "slow": 1.2}
    from etude.tell.studio.change import WhatIfs

    assert shown == WhatIfs(session.runs[0]).result(state)["after"]["makespan_ns"]
    page.wait("decodeURIComponent(location.hash).includes('bandwidth')")
    link = page.evaluate("location.href")
    page.send("Page.navigate", url="about:blank")
    page.send("Page.navigate", url=link)
    page.wait("document.querySelector('#after')?.dataset.ns !== undefined")
    assert int(page.evaluate("document.querySelector('#after').dataset.ns")) == shown


def test_sql_runs_and_completes(page: Browser) -> None:
    page.key("3")
    page.wait("document.querySelector('.result tbody tr') !== null")
    page.evaluate("""(() => { const box = document.querySelector('.editor textarea'); box.focus();
      box.value = 'select count(*) as n from nod'; box.selectionStart = box.selectionEnd = box.value.length;
      box.dispatchEvent(new Event('input')); })()""")
    page.wait("!document.querySelector('.hints').hidden")
    press(page, "Tab")
    assert page.evaluate("document.querySelector('.editor textarea').value").endswith("from nodes")
    page.click("button.main")
    page.wait("document.querySelectorAll('.result tbody tr').length === 1")
    assert page.evaluate("document.querySelector('#command').textContent").startswith("etude query")


def test_the_map_leads_to_the_timeline(page: Browser) -> None:
    page.key("2")
    page.wait("document.querySelector('.map canvas') !== null")
    page.evaluate("document.querySelector('.map canvas').focus()")
    press(page, "ArrowRight", "ArrowDown", "Enter")
    page.wait("window.studio.view === 'timeline' && window.studio.timeline.ranks.length === 1")
    settled(page)
    assert page.evaluate("window.studio.timeline.ranks") == [1]
    assert window(page)[0] > 0


def test_the_map_of_collectives_and_the_members_of_one(page: Browser) -> None:
    page.key("2")
    page.wait("document.querySelector('.map canvas') !== null")
    page.evaluate("""(() => { const box = document.querySelector('.map select[aria-label=Columns]');
      box.value = 'collectives'; box.dispatchEvent(new Event('change')); })()""")
    page.wait("document.querySelector('.map h2').textContent === 'Ranks by collectives'")
    page.evaluate("document.querySelector('.map canvas').focus()")
    press(page, "Enter")
    page.wait("window.studio.view === 'timeline' && !!window.studio.timeline")
    settled(page)
    page.evaluate("window.studio.timeline.pick('all')")
    page.wait("new Set(window.studio.timeline.rows.map((row) => row.rank)).size === 4")
    page.evaluate("window.studio.timeline.find.value = 'all_reduce'; window.studio.timeline.seek()")
    page.wait("document.querySelector('.joined') !== null && window.studio.timeline.members.length > 1")
    assert "arrive" in page.evaluate("document.querySelector('.joined').textContent")
    settled(page)


def test_the_critical_path_is_drawn_and_linked(page: Browser) -> None:
    page.evaluate("document.querySelector('.lanes canvas').focus()")
    press(page, "c")
    page.wait("document.querySelector('.on-path') !== null")
    settled(page)
    assert page.evaluate("document.querySelector('#command').textContent").startswith("etude critical-path")
    link = page.evaluate("location.href")
    page.send("Page.navigate", url="about:blank")
    page.send("Page.navigate", url=link)
    page.wait("document.querySelector('.on-path') !== null && !!window.studio.timeline.path")
    settled(page)


def test_before_and_after_move_together(page: Browser) -> None:
    visit(page, page.evaluate("window.studioAddress"), view="compare", knobs={"bandwidth": 0.25})
    page.wait("window.studio.pair?.every((line) => line.data && !line.waits)")
    page.evaluate("window.studio.pair[0].zoom(0.5)")
    windows = page.evaluate("window.studio.pair.map((line) => [line.first, line.last])")
    assert windows[0] == windows[1]
    page.wait("document.querySelectorAll('.why table').length > 1")


def test_a_link_opens_the_same_view(page: Browser) -> None:
    page.evaluate("window.studio.timeline.show([2], 100000, 900000)")
    page.wait("window.studio.timeline.ranks.length === 1")
    settled(page)
    shown, link = window(page), page.evaluate("location.href")
    page.send("Page.navigate", url="about:blank")
    page.send("Page.navigate", url=link)
    page.wait("document.documentElement?.dataset.ready === 'true'")
    settled(page)
    assert window(page) == pytest.approx(shown, abs=1)
    assert page.evaluate("window.studio.timeline.ranks") == [2]


def test_the_view_is_exported(page: Browser) -> None:
    for text, name in (("PNG", "timeline.png"), ("SVG", "timeline.svg"), ("Offline page", "report.html")):
        page.evaluate("window.studio.saved = null; document.querySelector('#share').click()")
        page.evaluate(
            f"[...document.querySelectorAll('dialog button')].find((one) => one.textContent === '{text}').click()"
        )
        page.wait("window.studio.saved !== null")
        saved, size = page.evaluate("window.studio.saved")
        assert saved == name and size > 2_000
        page.evaluate("document.querySelector('#dialog').close()")


def test_plans_are_points(page: Browser) -> None:
    plan = {"model": "gpt2", "gpus": 2, "global_batch": 2, "seq": 128}
    visit(page, page.evaluate("window.studioAddress"), view="plans", plan=plan)
    page.wait("document.querySelector('main').dataset.ready === 'true'")
    assert page.evaluate("document.querySelectorAll('.result tbody tr').length") == 3
    page.evaluate("document.querySelector('.result tbody tr').click()")
    page.wait("document.querySelector('#command').textContent.startsWith('etude predict')")


HOSTILE = (
    "<script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 1'>",
    "x" * 10_000,
    "\u202eevil\u202c עברית",
    "🔥" * 30,
    "</script><h1>no</h1>",
    "'; drop table nodes; --",
)


def test_names_are_text_everywhere(chromium: Browser, tmp_path: Path) -> None:
    job = with_names(session_of(job_folder(tmp_path)).runs[0].job(), HOSTILE)
    place = tmp_path / "hostile"
    etude.convert(job, place, to="parquet")
    server = StudioServer(StudioSession((StudioRun.of(RunSource(place, "dgx-h100")),)))
    server.start()
    chromium.problems.clear()
    try:
        for view in ("timeline", "overview", "ask", "compare"):
            visit(chromium, server.address, view=view, knobs={"bandwidth": 2})
            if view == "timeline":
                chromium.evaluate("""(() => { const box = document.querySelector('.timeline-view input[type=search]');
                  box.value = 'script'; box.dispatchEvent(new Event('input')); })()""")
                chromium.wait("document.querySelectorAll('.hits button').length > 0")
                chromium.evaluate("window.studio.timeline.mark(0); window.studio.timeline.mark(1e9)")
                chromium.wait("document.querySelector('.panel table') !== null")
            if view == "ask":
                chromium.wait("document.querySelector('.result tbody tr') !== null")
            if view == "compare":
                chromium.wait("document.querySelectorAll('.why table').length > 1")
            assert chromium.evaluate(
                "window.hit === undefined && !document.querySelector('main h1, main script, main img')"
            )
        assert chromium.problems == []
    finally:
        server.stop()


def with_names(job: Job, names: tuple[str, ...]) -> Job:
    """The job with hostile names, in turns."""
    import numpy as np

    from etude.model.text import HeapWriter

    trace, heap = job.traces[0], HeapWriter()
    base = heap.join(trace.heap)
    assert base == 0
    places = heap.put_all(names)
    named = trace.replace(heap=heap.heap(), name=np.resize(places, len(trace)))
    return job.replace(traces=(named, *job.traces[1:]))


def test_a_folder_of_another_verb_has_its_views(chromium: Browser, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    study = tmp_path / "study"
    study.mkdir()
    (study / "study.yaml").write_text("title: x\n")
    points = pa.table({"variant": list(HOSTILE), "step": [1.0] * len(HOSTILE), "commands": list(HOSTILE)})
    pq.write_table(points, study / "points.parquet")
    pq.write_table(pa.table({"variant": ["b"], "metric": ["step"], "ratio": [2.5]}), study / "rows.parquet")
    served = tmp_path / "served"
    words = "serve gpt2 --system dgx-h100 --rate 20 --count 12 --output 8 --prompt 64 -o"
    assert main([*words.split(), str(served)]) == 0
    for place, views in ((study, ("charts", "ask")), (served, ("charts", "timeline", "page", "ask"))):
        server = StudioServer(StudioSession((open_input(RunSource(place)),)))
        server.start()
        chromium.problems.clear()
        chromium.requests.clear()
        try:
            for view in views:
                visit(chromium, server.address, view=view, shape="bars")
                if view == "ask":
                    chromium.wait("document.querySelector('.result .bars, .result table') !== null")
                if view == "charts":
                    chromium.wait("document.querySelectorAll('.chart').length > 1")
                assert chromium.evaluate(
                    "window.hit === undefined && !document.querySelector('main h1, main script, main img')"
                )
            assert chromium.problems == []
            assert [one for one in chromium.requests if not one.startswith((server.address, "about:"))] == []
        finally:
            server.stop()


def test_flows_a_counter_and_notes_by_the_keyboard(page: Browser) -> None:
    page.evaluate("document.querySelector('.lanes canvas').focus()")
    press(page, "f")
    page.wait("window.studio.timeline.flows?.flows.length > 0")
    page.evaluate("""(() => { const box = document.querySelector('select[aria-label=Counter]');
      box.value = 'power'; box.dispatchEvent(new Event('change')); })()""")
    page.wait("window.studio.timeline.counts?.series.length === 4")
    page.evaluate("document.querySelector('.lanes canvas').focus()")
    press(page, "t")
    page.wait("document.activeElement.className === 'note'")
    page.send("Input.insertText", text=HOSTILE[0])
    page.key("Enter")
    page.wait("document.querySelectorAll('.noted li').length === 1")
    assert page.evaluate("window.hit === undefined && document.querySelector('.noted li').textContent.includes('hit')")
    link = page.evaluate("location.href")
    page.send("Page.navigate", url="about:blank")
    page.send("Page.navigate", url=link)
    page.wait("window.studio?.timeline?.flows && window.studio.timeline.counts && window.studio.timeline.notes.length")
    page.evaluate("document.querySelector('.lanes canvas').focus()")
    press(page, "t")
    page.click("button[aria-label='Delete this note']")
    page.wait("document.querySelectorAll('.noted li').length === 0")


def test_two_timelines_are_aligned_at_a_step(page: Browser) -> None:
    visit(page, page.evaluate("window.studioAddress"), view="compare", knobs={"bandwidth": 0.25})
    page.wait("document.querySelectorAll('.why table').length > 2")
    page.evaluate("""(() => { const box = document.querySelector('select[aria-label="Aligned at"]');
      box.value = '1'; box.dispatchEvent(new Event('change'));
      document.querySelector('main input[type=checkbox]').click(); })()""")
    page.wait("window.studio.pair.every((line) => line.zero > 0 && line.ratios && line.data && !line.waits)")
    firsts = page.evaluate("window.studio.pair.map((line) => line.first - line.zero)")
    assert firsts[0] == pytest.approx(firsts[1]) and firsts[0] <= 0
    assert page.evaluate("document.querySelector('#command').textContent").startswith("etude simulate")
