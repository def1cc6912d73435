"""The folder of a served stream: written, asked, shown."""

import json
from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import FormatError
from etude.surface.cli import main
from etude.tell.report import served_page
from etude.tell.view.page import render
from etude.world.serve import Engine, serve, summary
from etude.world.serve.asked.text import holds_rps, shown_point
from etude.world.serve.requests import requests_of
from etude.world.serve.steps import step_cost
from etude.world.serve.stored import read_served, write_served

MILLISECOND = step_cost(tokens=[1], layers_ns=[1e6])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    requests = requests_of(np.arange(20) * 10**6, np.full(20, 100), np.arange(1, 21))
    found = serve(requests, Engine(num_gpu_blocks=1000), MILLISECOND, replicas=2, keep_passes=True)
    write_served(found, summary(found) | {"asked": {"model": "<m>"}}, tmp_path / "served")
    return tmp_path / "served"


def test_what_is_written_is_read(folder: Path):
    found = read_served(folder)
    tables = found.tables
    assert found.record["requests"] == len(tables["requests"]) == 20
    assert sum(tables["replicas"]["tokens_out"].to_pylist()) == 210
    assert len(tables["passes"]) == sum(tables["replicas"]["passes"].to_pylist()) == found.record["passes"]
    assert sum(tables["replicas"]["requests"].to_pylist()) == 20


def test_it_is_asked_in_sql(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["query", str(folder), "select sum(output) as tokens from requests", "--csv"]) == 0
    assert capsys.readouterr().out.split() == ["tokens", "210"]
    assert main(["query", str(folder), "select * from nodes"]) == 2
    assert "tables: requests, passes, replicas" in capsys.readouterr().err


def test_its_page_says_what_it_shows(folder: Path, tmp_path: Path):
    assert main(["report", str(folder), "-o", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "the slowest 1%" in text and "&lt;m&gt;" in text
    found = read_served(folder)
    page = served_page(found.record, found.tables, title="served")
    assert "20 requests answered" in page.verdict
    assert text.startswith(render(page)[:200])


def test_a_curve_is_shown(folder: Path):
    found = read_served(folder)
    times = {"p50": 0.1, "p99": 0.4}
    rates = [
        {"rate_rps": rate, "within_limits": kept, "goodput_rps": rate * kept, "ttft_s": times, "tpot_s": times}
        for rate, kept in ((1.0, 1.0), (2.0, 0.95), (4.0, 0.5), (8.0, 0.95))
    ]
    holds = holds_rps(rates, 0.9)
    assert holds == 2.0 and shown_point({"rates": rates, "holds_rps": holds}) == 1
    assert shown_point({"rates": rates, "holds_rps": None}) == 0
    page = served_page(found.record | {"rates": rates, "holds_rps": holds}, found.tables, title="served")
    assert "Goodput against rate" in render(page)
    assert "The limits are met up to 2 per second" in page.sections[0].lead
    assert "Goodput against rate" not in render(served_page(found.record, found.tables, title="served"))


def test_two_streams_side_by_side(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    slow = step_cost(tokens=[1], layers_ns=[2e6])
    requests = requests_of(np.arange(20) * 10**6, np.full(20, 100), np.arange(1, 21))
    found = serve(requests, Engine(num_gpu_blocks=1000), slow, replicas=1, keep_passes=True)
    write_served(found, summary(found) | {"asked": {"model": "<m>", "replicas": 1}}, tmp_path / "other")
    assert main(["compare", str(folder), str(tmp_path / "other"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = {row["measure"]: row for row in told["measures"]}
    assert rows["requests"] == {"measure": "requests", "a": 20.0, "b": 20.0, "change": 0.0, "ratio": 1.0}
    first = [(read_served(p).tables["requests"]["first_token_s"].to_numpy() - np.arange(20) / 1e3).mean() for p in
             (folder, tmp_path / "other")]  # fmt: skip
    assert rows["ttft_s.mean"]["change"] == pytest.approx(first[1] - first[0])
    assert told["settings"] == [{"setting": "replicas", "a": None, "b": "1"}]
    assert main(["compare", str(folder), str(tmp_path), "--csv"]) == 2
    assert "not a served stream" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "text"), [("served.json", b"{"), ("served.json", b"{}"), ("passes.parquet", b"x")])
def test_a_broken_folder_is_refused(folder: Path, name: str, text: bytes):
    (folder / name).write_bytes(text)
    with pytest.raises(FormatError, match="not a served stream"):
        read_served(folder)


def test_a_workflow_is_asked_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`a` and `c` take 3 s each of an endpoint for one call at a time, `b` 2 s after `a`: c waits 3 s, all takes 6."""
    flow = tmp_path / "flow.yaml"
    tasks = "a: {tool: api, time: 3s}, b: {tool: shell, time: 2s, after: a}, c: {tool: api, time: 3s}"
    flow.write_text(f"sessions: 1\nendpoints: {{api: 1}}\ntasks: {{{tasks}}}\n")
    out = tmp_path / "ran"
    assert main(["serve", "--workflow", str(flow), "-o", str(out)]) == 0
    capsys.readouterr()
    asked = "select task, count(*) as calls, sum(begin_s - ready_s) as waited from tasks group by task order by task"
    assert main(["query", str(out), asked, "--csv"]) == 0
    rows = [line.split(",") for line in capsys.readouterr().out.split()[1:]]
    assert [(row[0], int(row[1]), float(row[2])) for row in rows] == [("a", 1, 0.0), ("b", 1, 0.0), ("c", 1, 3.0)]
    assert main(["query", str(out), "select * from nodes"]) == 2
    assert "tables: sessions, tasks" in capsys.readouterr().err
    assert main(["report", str(out), "-o", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "1 session of 3 calls ended in 6" in text and "Where the time goes" in text
    assert main(["serve", "--workflow", str(flow), "-o", str(out)]) == 2  # nothing is replaced unasked
