"""The server of the Model Context Protocol, asked by the package's own client."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from etude.base.errors import UsageError
from etude.surface.cli import main
from etude.surface.mcp import Access, make_server
from etude.surface.mcp.access import check_model, check_names
from etude.surface.mcp.bounds import BYTES, ROWS, bounded, rows_of
from later import later

mcp = later("mcp")

Ask = Callable[..., tuple[bool, Any]]
SAMPLE = Path(__file__).resolve().parent.parent / "src/etude/capture/sample"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a job, a recording, and a secret beside it."""
    base = tmp_path_factory.mktemp("mcp")
    folder = base / "root"
    folder.mkdir()
    (base / "secret.csv").write_text("a\n1\n")
    assert main(["generate", "gpt2", "--gpus", "2", "-o", str(folder / "job")]) == 0
    (folder / "run").mkdir()
    for file in SAMPLE.glob("gpt.rank0.*"):
        (folder / "run" / file.name).write_bytes(file.read_bytes())
    return folder


def asked(access: Access, *calls: tuple[str, dict[str, Any]]) -> list[tuple[bool, Any]]:
    """(is it an error, the text or the record) of each call, in one session."""

    async def go() -> list[tuple[bool, Any]]:
        async with mcp.Client(make_server(access)) as client:
            found = [await client.call_tool(name, given) for name, given in calls]
        return [(one.is_error, one.content[0].text if one.is_error else one.structured_content) for one in found]

    return asyncio.run(go())


def one(access: Access, name: str, **given: Any) -> Any:
    error, found = asked(access, (name, given))[0]
    assert not error, found
    return found


def refusal(access: Access, name: str, **given: Any) -> str:
    error, found = asked(access, (name, given))[0]
    assert error, found
    return str(found)


def test_the_tools_are_these_and_say_what_they_take(root: Path):
    async def go(access: Access) -> Any:
        async with mcp.Client(make_server(access)) as client:
            return (await client.list_tools()).tools

    tools = {tool.name: tool for tool in asyncio.run(go(Access.of(root)))}
    assert list(tools) == ["info", "query", "breakdown", "critical_path", "compare", "predict", "edit"]
    assert set(tools["query"].input_schema["properties"]) == {"path", "sql"}
    assert all("access" not in tool.input_schema["properties"] and tool.description for tool in tools.values())
    assert all(tool.annotations.read_only_hint for tool in tools.values())
    writing = {tool.name: tool for tool in asyncio.run(go(Access.of(root, root)))}
    assert [name for name, tool in writing.items() if not tool.annotations.read_only_hint] == ["edit"]


def test_the_answers_are_those_of_the_commands(root: Path, capsys: pytest.CaptureFixture[str]):
    access = Access.of(root)

    def command(*words: str) -> Any:
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert one(access, "info", path="job") == command("info", str(root / "job"))
    found = one(access, "breakdown", path="run")
    rows = command("breakdown", str(root / "run"))
    assert [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]] == rows
    path = one(access, "critical_path", path="run", top=3)
    assert path["length_ns"] == command("critical-path", str(root / "run"))["length_ns"]
    assert len(path["longest"]["rows"]) == 3
    alike = one(access, "compare", a="run", b="run")
    assert alike["similarity"] == command("compare", str(root / "run"), str(root / "run"))["similarity"]
    plan = {"gpus": 8, "tp": 2}
    step = one(access, "predict", model="gpt2", system="dgx-h100", plan=plan)["step_time_ns"]
    assert step == command("predict", "gpt2", "--gpus", "8", "--tp", "2", "--system", "dgx-h100")["step_time_ns"]


def test_a_query_selects(root: Path):
    access = Access.of(root)
    sql = "SELECT rank, count(*) AS n FROM nodes GROUP BY ALL ORDER BY rank DESC;"
    found = one(access, "query", path="job", sql=sql)
    assert found["columns"] == ["rank", "n"]
    assert [row[0] for row in found["rows"]] == [1, 0]
    assert found["rows_in_all"] == 2
    long = one(access, "query", path="job", sql="SELECT * FROM range(100000)")
    assert len(long["rows"]) == ROWS
    assert "there are more" in long["note"]
    assert "rank" in {row[0] for row in one(access, "query", path="job", sql="DESCRIBE nodes")["rows"]}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM '{secret}'",
        "SELECT * FROM read_csv('{secret}')",
        "COPY nodes TO '{secret}'",
        "ATTACH '{secret}'",
        "SELECT 1; DROP VIEW nodes",
        "SELECT 1) ; DELETE FROM nodes; SELECT * FROM (SELECT 1",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "SELECT * FROM glob('/*')",
    ],
)
def test_sql_opens_and_writes_nothing(root: Path, sql: str):
    secret = root.parent / "secret.csv"
    told = refusal(Access.of(root), "query", path="job", sql=sql.format(secret=secret))
    assert "hint:" in told
    assert secret.read_text() == "a\n1\n"


def test_a_query_that_takes_too_long_is_ended(root: Path):
    from etude.store.sql import query

    with pytest.raises(UsageError, match="takes longer than 0.2 s"):
        query(root / "job", "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b", seconds=0.2)
    assert len(query(root / "job", "SELECT 1", seconds=60)) == 1


@pytest.mark.parametrize(
    "path",
    [
        "../secret.csv",
        "/etc/passwd",
        "job/../../secret.csv",
        "s3://bucket/job",
        "",
        "a\0b",
        "run/x.json,/etc/passwd",
        "run/*.json",
    ],
)
def test_a_path_outside_the_root_is_refused(root: Path, path: str):
    told = refusal(Access.of(root), "info", path=path)
    assert "root" in told or "no such file" in told or "one job" in told


def test_a_link_out_of_the_root_is_refused(root: Path, tmp_path: Path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
    (outside / "w.0.et").write_bytes(b"")
    (inside / "folder").symlink_to(outside)
    (inside / "mixed").mkdir()
    (inside / "mixed" / "w.0.et").symlink_to(outside / "w.0.et")
    access = Access.of(inside)
    assert "is outside" in refusal(access, "info", path="folder")
    assert "is outside" in refusal(access, "info", path="mixed/w.0.et")
    for path in ("mixed", "mixed/w"):
        assert "the link `w.0.et` points outside" in refusal(access, "info", path=path)
    (inside / "here").symlink_to(root / "job")
    assert not asked(Access.of(root), ("info", {"path": "job"}))[0][0]


def test_a_root_that_is_a_link_is_what_it_leads_to(root: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(root)
    assert one(Access.of(tmp_path / "link"), "info", path="job")["ranks"] == 2


def test_edit_writes_below_its_folder_and_nowhere_else(root: Path, tmp_path: Path):
    edits = ["compress group=dp ratio=2"]
    assert "does not write" in refusal(Access.of(root), "edit", path="job", edits=edits, out="copy")
    asked_only = one(Access.of(root), "edit", path="job", edits=edits, system="dgx-h100")
    assert asked_only["after_ns"] <= asked_only["before_ns"]
    access = Access.of(root, tmp_path)
    for name in ("../copy", "/tmp/copy", ".hidden", "a/b", "", "x" * 200)[:4]:
        assert "is not the name" in refusal(access, "edit", path="job", edits=edits, out=name)
    assert one(access, "edit", path="job", edits=edits, out="copy")["written"] == "copy"
    assert one(access, "info", path=str(tmp_path / "copy"))["ranks"] == 2
    assert "exists already" in refusal(access, "edit", path="job", edits=edits, out="copy")
    assert sorted(os.listdir(tmp_path)) == ["copy"]


def test_an_error_has_its_hint(root: Path):
    access = Access.of(root)
    assert "hint: give `system`" in refusal(access, "breakdown", path="job")
    assert "known: " in refusal(access, "breakdown", path="job", system="no-such-system")
    assert "unknown model" in refusal(access, "predict", model="nothing", system="dgx-h100")
    assert "unknown key" in refusal(access, "predict", model="gpt2", system="dgx-h100", plan={"gpu": 2})
    assert "not a stack" in refusal(access, "predict", model="gpt2", system="dgx-h100", stack="x.yaml")


@pytest.mark.parametrize("value", ["loads.csv", "/etc/passwd", "mine.py:plan", "..\\x", "@file", ["a.csv"]])
def test_a_plan_names_no_files(value: Any):
    with pytest.raises(UsageError, match="names a file"):
        check_names({"moe_loads": value})
    with pytest.raises(UsageError, match="files"):
        check_names({"directives": "mine"})
    check_names({"gpus": 8, "schedule": "interleaved:4", "lengths": "512:0.5,4096:0.5", "order": "tp-cp-dp-pp"})


@pytest.mark.parametrize("name", ["../m.yaml", "m.yaml", "config.json", "a/b/c", "/etc/passwd", ""])
def test_a_model_is_no_file(name: str):
    with pytest.raises(UsageError, match="not the name of a model"):
        check_model(name)


def test_a_result_is_bounded():
    rows = rows_of(pa.table({"n": np.arange(1000)}))
    assert len(rows["rows"]) == ROWS
    assert rows["note"] == f"the first {ROWS} of 1,000 rows"
    large = {"names": ["x" * 5000] * 5000, "deep": {str(i): [float("nan")] * 500 for i in range(500)}}
    made = bounded(large)
    assert len(json.dumps(made)) <= 2 * BYTES
    assert any(text.startswith("names: the first") for text in made["cut"])
    assert bounded({"a": 1, "b": [1, 2], "c": np.float64(2.5)}) == {"a": 1, "b": [1, 2], "c": 2.5}


def test_a_session_over_stdio(root: Path):
    async def go() -> Any:
        server = mcp.StdioServerParameters(
            command=sys.executable, args=["-m", "etude", "mcp", "--root", str(root)], env=dict(os.environ)
        )
        async with mcp.Client(server) as client:
            return await client.call_tool("info", {"path": "job"})

    assert asyncio.run(asyncio.wait_for(go(), 120)).structured_content["ranks"] == 2


def test_a_root_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["mcp", "--root", str(tmp_path / "nothing")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_without_the_package_the_command_says_what_to_install(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert main(["mcp", "--root", str(root)]) == 2
    assert "pip install 'etude[mcp]'" in capsys.readouterr().err
