"""How values show themselves in a notebook: what they say, and that no name can break out of it."""

import importlib.util
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import etude
from etude.base import notebook
from etude.decide.search.found import Found
from etude.decide.study.run import Outcome
from jobs import graph, job_with

ROOT = Path(__file__).resolve().parent.parent
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x00'\""
ALONE = {"img", "br", "hr", "meta", "input"}


class Seen(HTMLParser):
    """Elements that are open, those that were seen, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.handlers: list[str] = []
        self.text = ""
        self.feed(html)
        assert self.open == [], "elements that are not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.handlers += [name for name, value in attrs if name.startswith("on") or "javascript:" in (value or "")]
        if tag not in ALONE:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += f" {data}"


def harmless(html: str) -> str:
    """The text of a piece of HTML that runs nothing, loads nothing and hides nothing."""
    seen = Seen(html)
    assert not seen.tags & {"script", "img", "iframe", "object", "link", "a", "form"}
    assert seen.handlers == []
    assert "\u202e" not in html and "\x00" not in html
    assert "http" not in html.replace("http://www.w3.org", "")
    return " ".join(seen.text.split())


@pytest.fixture
def one() -> etude.Job:
    return etude.open(ROOT / "src/etude/capture/sample")


def test_a_job_tells_its_ranks_nodes_span_and_kinds(one: etude.Job):
    said = harmless(one._repr_html_())
    assert said.startswith("gpt job ranks 1 distinct programs 1 nodes 7,920")
    assert "span 9.88 ms" in said and "compute 7,920" in said


def test_a_job_of_folded_ranks_counts_each_of_them():
    unfolded = job_with(*(graph([[], [0], [0, 1]]) for _ in range(4)))
    assert len(etude.extend.fold(unfolded).traces) == 1
    kinds = [harmless(one._repr_html_()).partition("span")[2] for one in (unfolded, etude.extend.fold(unfolded))]
    assert kinds[0] == kinds[1]
    assert f"nodes {unfolded.nodes:,}" in harmless(etude.extend.fold(unfolded)._repr_html_())


def test_a_run_adds_up_the_time_of_nodes_that_work(one: etude.Job):
    run = etude.open_run(ROOT / "src/etude/capture/sample")
    said = harmless(run._repr_html_())
    assert "times measured" in said
    simulated = harmless(etude.simulate(one, etude.open_system("h200"))._repr_html_())
    assert "times simulated system h200" in simulated


def test_times_tell_where_they_came_from():
    from etude.model.timing import Origin, Timing

    block = np.array([0, 10, np.iinfo(np.int64).min], np.int64)
    timing = Timing(
        origin=Origin.MEASURED,
        start_ns=(block,),
        end_ns=(np.array([5, 2_000_000, np.iinfo(np.int64).min], np.int64),),
        block_of=np.zeros(2, np.int32),
        clock_offset_ns=np.zeros(2, np.int64),
    )
    said = harmless(timing._repr_html_())
    assert "origin measured ranks 2 sets of times 1 nodes with times 4 of 6 span 2 ms" in said


def test_a_system_tells_its_levels():
    said = harmless(etude.open_system("dgx-h100")._repr_html_())
    assert "dgx-h100 system devices 1,024" in said
    assert "nvlink switch 8 450 GB/s 700 ns" in said


def test_a_table_shows_its_first_and_last_rows_with_units():
    table = pa.table({"rank": range(100), "time_ns": [i * 1_000_000 for i in range(100)], "size_bytes": [2048] * 100})
    said = harmless(notebook.table(table))
    assert "100 rows × 3 columns" in said and "rank time size" in said
    assert "4 4 ms 2.05 kB … 90 more rows … 95 95 ms" in said
    assert " 50 50 ms" not in said
    assert "… " not in harmless(notebook.table(table.slice(0, 10)))
    assert harmless(notebook.table(table.slice(0, 0))).startswith("0 rows")


def test_a_moment_of_a_recording_is_a_time_of_day():
    table = pa.table({"start_ns": [1_794_897_869_488_559_266], "length_ns": [1500]})
    assert "06:44:29.488559 1.5 " in harmless(notebook.table(table))


def test_a_wide_table_says_what_is_left_out():
    said = harmless(notebook.table(pa.table({f"c{i}": [i] for i in range(40)})))
    assert "16 more columns" in said


def test_names_cannot_break_out():
    assert "alert" in harmless(notebook.table(pa.table({EVIL: [EVIL, None], "n": [1, 2]})))
    system = replace(etude.open_system("dgx-h100"), name=EVIL, doc=EVIL)
    harmless(system._repr_html_())
    harmless(notebook.card(EVIL, EVIL, [(EVIL, EVIL)], notebook.note(EVIL), notebook.shares([(EVIL, 7.0, EVIL)])))
    rows = [{"name": EVIL, "step_ns": 1.0, "memory_bytes": 3}, {"name": "b", "step_ns": 2.0, "memory_bytes": 2}]
    found = Found(best=rows[0], frontier=rows, tried=2, space=5, pruned={EVIL: 3}, rows=rows, notes=(EVIL,),
                  more={"scores": ["step_ns", "memory_bytes"]})  # fmt: skip
    said = harmless(found._repr_html_())
    assert "candidates 5 tried 2 pruned 3" in said
    assert "svg" in Seen(found._repr_html_()).tags


def test_a_study_tells_its_verdict_and_draws(tmp_path: Path):
    from etude.decide.study.spec import read_spec

    evil = EVIL.replace('"', "").replace("\x00", "").replace("\u202e", "")
    file = tmp_path / "s.yaml"
    file.write_text((ROOT / "examples/study.yaml").read_text())
    study = etude.study(file)
    assert "study, not run" in harmless(study._repr_html_())
    spec = replace(read_spec(file, quick=True), facts={"title": evil})
    axis = spec.space.names[0]
    points = [
        {"variant": variant, axis: gbit, **{m.name: 1.0 * gbit for m in spec.metrics}, "error": "", "commands": evil}
        for variant in spec.variants
        for gbit in (100, 400)
    ]
    checks = [{"name": evil, "kind": evil, "ok": False, "detail": evil}]
    found = Outcome(spec=spec, points=points, rows=points, checks=checks, claims=[], notes=[evil], ran=0)
    html = found._repr_html_()
    assert "does not hold" in harmless(html)
    assert {"svg", "polyline", "circle"} <= Seen(html).tags
    assert evil not in html


def test_ipython_is_told_once_and_only_where_it_runs():
    told: list[tuple[str, str]] = []

    class Formatter:
        deferred_printers: dict[tuple[str, str], Any] = {}  # noqa: RUF012

        def for_type_by_name(self, module: str, name: str, function: Any) -> None:
            told.append((module, name))
            self.deferred_printers[module, name] = function

    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": Formatter()}))
    assert notebook.register(shell) and notebook.register(shell)
    notebook.load_ipython_extension(shell)
    assert told == [("pyarrow.lib", "Table")]
    assert not notebook.register(SimpleNamespace())


def test_the_example_notebook_runs_and_shows_what_it_kept():
    module = importlib.util.spec_from_file_location("notebook_maker", ROOT / "docs/notebook.py")
    assert module is not None and module.loader is not None
    maker = importlib.util.module_from_spec(module)
    module.loader.exec_module(maker)
    kept = json.loads((ROOT / "examples/first_look.ipynb").read_text("utf-8"))
    names: dict[str, Any] = {}
    for cell in kept["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            found = maker.run_cell(text, names)
            assert maker.shown(found, cell["execution_count"]) == cell["outputs"][0], (
                f"`python docs/notebook.py`\n{text}"
            )
            harmless("".join(cell["outputs"][0]["data"]["text/html"]))
    assert ["".join(cell["source"]) for cell in kept["cells"]] == maker.CELLS
