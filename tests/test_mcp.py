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
from etude.base.excerpts import BYTES, ROWS, bounded, rows_of
from etude.surface.cli import main
from etude.surface.cli.registry import all_verbs
from etude.surface.mcp import FolderAccess, make_server
from etude.surface.mcp.worker import ToolProcess
from later import later
from score_files import OPERATORS
from surface.stage_serve import FLOW

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


def asked(access: FolderAccess, *calls: tuple[str, dict[str, Any]]) -> list[tuple[bool, Any]]:
    """(is it an error, the text or the record) of each call, in one session."""

    async def go() -> list[tuple[bool, Any]]:
        async with mcp.Client(make_server(access, all_verbs())) as client:
            found = [await client.call_tool(name, given) for name, given in calls]
        return [(one.is_error, one.content[0].text if one.is_error else one.structured_content) for one in found]

    return asyncio.run(go())


def one(access: FolderAccess, name: str, **given: Any) -> Any:
    error, found = asked(access, (name, given))[0]
    assert not error, found
    return found


def refusal(access: FolderAccess, name: str, **given: Any) -> str:
    error, found = asked(access, (name, given))[0]
    assert error, found
    return str(found)


def listed(access: FolderAccess) -> dict[str, Any]:
    async def go() -> Any:
        async with mcp.Client(make_server(access, all_verbs())) as client:
            return (await client.list_tools()).tools

    return {tool.name: tool for tool in asyncio.run(go())}


ANALYSES = {
    "diagnose", "breakdown", "idle", "kernels", "collectives", "critical_path", "stragglers", "trend", "compare",
    "metrics", "requests", "roofline", "memory",
}  # fmt: skip


BEHIND = {
    "predict_serve", "predict_sections", "predict_rows", "serve_images", "serve_workflow", "serve_devices",
    "serve_offload", "serve_split", "serve_run", "serve_rows", "search_space", "simulate_jobs", "simulate_astra",
}  # fmt: skip
"""Verbs behind the word of a tool."""


def test_the_tools_are_verbs_and_say_what_they_take(root: Path):
    tools = listed(FolderAccess.of(root))
    assert {"info", "query", "check", "diff", *ANALYSES} <= set(tools)
    assert {"predict", "edit", "search", "serve", "simulate", "score"} <= set(tools)
    assert set(tools) >= BEHIND
    assert not {"archive_add", "study_run", "replay", "collect", "ops_measure", "qualify", "demo"} & set(tools)
    assert "report" not in tools  # which writes
    assert set(tools["query"].input_schema["properties"]) >= {"path", "sql"}
    assert all(tool.description and tool.annotations.read_only_hint for tool in tools.values())
    writing = listed(FolderAccess.of(root, root))
    assert {"edit", "report"} <= {name for name, tool in writing.items() if not tool.annotations.read_only_hint}
    assert writing["report"].input_schema["required"] == ["paths", "out"]


def test_schemas_are_strict(root: Path):
    jsonschema = later("jsonschema")
    tools = listed(FolderAccess.of(root))
    for tool in tools.values():
        jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        assert tool.input_schema["additionalProperties"] is False
        assert not {"json", "csv", "md", "force", "workers", "out"} & set(tool.input_schema["properties"])
    axes = tools["predict"].input_schema["properties"]
    assert axes["tp"] | {"description": ""} == {
        "type": "integer",
        "minimum": 1,
        "maximum": 1_048_576,
        "default": 1,
        "description": "",
    }
    assert "bf16" in axes["precision"]["enum"]
    assert tools["critical_path"].input_schema["properties"]["top"]["default"] == 20


def test_an_unknown_argument_is_refused_with_its_nearest(root: Path):
    access = FolderAccess.of(root)
    assert "did you mean `system`?" in refusal(access, "breakdown", path="run", sistem="dgx-h100")
    assert "did you mean `gpus`?" in refusal(access, "predict", model="gpt2", system="dgx-h100", gpu=16)
    assert "unknown parameter `json`" in refusal(access, "info", path="job", json=True)
    assert "`calls` is read only with `launches` or `queues`" in refusal(access, "idle", path="run", calls="^cuda")
    assert "`as` was given" in refusal(access, "breakdown", path="run", steps=True, **{"as": "hta"})
    assert "unknown tool" in refusal(access, "brakdown", path="run")


def test_every_tool_refuses_what_it_does_not_have(root: Path):
    access = FolderAccess.of(root, root)
    names = sorted(listed(access))
    for name, (error, told) in zip(
        names, asked(access, *((name, {"no_such_thing": 1}) for name in names)), strict=True
    ):
        assert error and f"`{name}`: unknown parameter `no_such_thing`" in told


def test_verbs_behind_a_word_answer_too(root: Path):
    access = FolderAccess.of(root)
    (root / "flow.yaml").write_text(FLOW)
    (root / "space.yaml").write_text(
        "search: commands\nrun: predict gpt2 --gpus 4 --system dgx-h100 --json {flags}\naxes: {tp: [1, 2]}\n"
        "score: {step: step_time_ns}\n"
    )
    served = one(access, "predict_serve", model="gpt2", prefill=64, decode=4, batch=2, system="dgx-h100")
    assert served["ttft_ns"]["mean"] > 0
    assert one(access, "serve_workflow", workflow="flow.yaml")["sessions"]
    assert one(access, "search_space", space="space.yaml")["tried"] == 2
    told = refusal(access, "search_space", space="space.yaml", trust=True)
    assert "unknown parameter `trust`" in told
    assert "is outside" in refusal(access, "serve_workflow", workflow="../flow.yaml")


def test_axes_of_a_plan_are_arguments_too(root: Path):
    access = FolderAccess.of(root)
    flat = one(access, "predict", model="gpt2", system="dgx-h100", gpus=16, tp=2)
    assert flat["ranks"] == 16
    assert flat == one(access, "predict", model="gpt2", system="dgx-h100", plan={"gpus": 16, "tp": 2})
    assert "given twice" in refusal(access, "predict", model="gpt2", system="dgx-h100", tp=2, plan={"tp": 4})


def test_what_is_run_is_asked_for_like_the_commands(root: Path, capsys: pytest.CaptureFixture[str]):
    """`simulate`, `search`, `serve` and `score`: an answer each, and refusals by name."""
    access = FolderAccess.of(root)
    (root / "r.csv").write_text("arrival,prompt,output\n0,100,4\n0.1,500,6\n")
    (root / "ops.csv").write_text(OPERATORS)
    assert main(["simulate", str(root / "job"), "--system", "dgx-h100", "--json"]) == 0
    assert one(access, "simulate", path="job", system="dgx-h100") == json.loads(capsys.readouterr().out)
    found = one(access, "search", model="gpt2", gpus=4, system="dgx-h100", over="tp=1|2,zero", top=2)
    assert found["best"]["gpus"] == 4 and len(found["rows"]) == 2 < found["tried"]
    assert one(access, "serve", model="llama3-8b", system="dgx-h100", requests="r.csv")["finished"] == 2
    assert one(access, "score", files=["ops.csv"])["summary"]["time_s"]["rows"] == 2
    assert "did you mean `progress`?" in refusal(access, "simulate", path="job", system="dgx-h100", progres=["on=host"])
    assert "unknown parameter `ray`" in refusal(access, "search", model="gpt2", system="dgx-h100", ray="auto")
    assert "is no name" in refusal(access, "serve", model="gpt2", system="dgx-h100", rate="2", router="mine.py:route")
    assert "`stack` is not read by operators" in refusal(access, "score", files=["ops.csv"], stack="nemo")
    assert "is outside" in refusal(access, "score", files=["../secret.csv"])


def test_the_answers_are_those_of_the_commands(root: Path, capsys: pytest.CaptureFixture[str]):
    access = FolderAccess.of(root)

    def command(*words: str) -> Any:
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert one(access, "info", path="job") == command("info", str(root / "job"))
    found = one(access, "breakdown", path="run")
    rows = command("breakdown", str(root / "run"))
    assert {name: found[name] for name in rows} == rows
    path = one(access, "critical_path", path="run", top=3)
    assert path["length_ns"] == command("critical-path", str(root / "run"))["length_ns"]
    assert len(path["longest"]["rows"]) == 3
    alike = one(access, "compare", a="run", b="run")
    assert alike["similarity"] == command("compare", str(root / "run"), str(root / "run"))["similarity"]
    plan = {"gpus": 8, "tp": 2}
    step = one(access, "predict", model="gpt2", system="dgx-h100", plan=plan)["step_time_ns"]
    assert step == command("predict", "gpt2", "--gpus", "8", "--tp", "2", "--system", "dgx-h100")["step_time_ns"]


def test_a_query_selects(root: Path):
    access = FolderAccess.of(root)
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
    told = refusal(FolderAccess.of(root), "query", path="job", sql=sql.format(secret=secret))
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
    told = refusal(FolderAccess.of(root), "info", path=path)
    assert "root" in told or "no such file" in told or "one job" in told


def test_a_link_out_of_the_root_is_refused(root: Path, tmp_path: Path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
    (outside / "w.0.et").write_bytes(b"")
    (inside / "folder").symlink_to(outside)
    (inside / "mixed").mkdir()
    (inside / "mixed" / "w.0.et").symlink_to(outside / "w.0.et")
    access = FolderAccess.of(inside)
    assert "is outside" in refusal(access, "info", path="folder")
    assert "is outside" in refusal(access, "info", path="mixed/w.0.et")
    for path in ("mixed", "mixed/w"):
        assert "the link `w.0.et` points outside" in refusal(access, "info", path=path)
    (inside / "here").symlink_to(root / "job")
    assert not asked(FolderAccess.of(root), ("info", {"path": "job"}))[0][0]


def test_a_root_that_is_a_link_is_what_it_leads_to(root: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(root)
    assert one(FolderAccess.of(tmp_path / "link"), "info", path="job")["ranks"] == 2


def test_edit_writes_below_its_folder_and_nowhere_else(root: Path, tmp_path: Path):
    edits = ["compress group=dp ratio=2"]
    assert "does not write" in refusal(FolderAccess.of(root), "edit", path="job", edits=edits, out="copy")
    asked_only = one(FolderAccess.of(root), "edit", path="job", edits=edits, system="dgx-h100", simulate=True)
    assert asked_only["after_ns"] <= asked_only["before_ns"]
    access = FolderAccess.of(root, tmp_path)
    for name in ("../copy", "/tmp/copy", ".hidden", "a/b", "", "x" * 200)[:4]:
        assert "is not the name" in refusal(access, "edit", path="job", edits=edits, out=name)
    assert one(access, "edit", path="job", edits=edits, out="copy")["written"] == "copy"
    assert one(access, "info", path=str(tmp_path / "copy"))["ranks"] == 2
    assert "exists already" in refusal(access, "edit", path="job", edits=edits, out="copy")
    assert sorted(os.listdir(tmp_path)) == ["copy"]


def test_an_error_has_its_hint(root: Path):
    access = FolderAccess.of(root)
    assert "hint: `system` dgx-h100 simulates it there" in refusal(access, "breakdown", path="job")
    assert str(root) not in refusal(access, "breakdown", path="job")
    assert "known: " in refusal(access, "breakdown", path="job", system="no-such-system")
    assert "unknown model" in refusal(access, "predict", model="nothing", system="dgx-h100")
    assert "did you mean `gpus`" in refusal(access, "predict", model="gpt2", system="dgx-h100", plan={"gpu": 2})
    assert "no file below the root" in refusal(access, "predict", model="gpt2", system="dgx-h100", stack="x.yaml")


@pytest.mark.parametrize(
    "value",
    ["loads.csv", "/etc/passwd", "mine.py:plan", "..\\x", "@file", ["a.csv"], "GB/s", "1GB/secret", {"a": "b.csv"}],
)
def test_a_text_names_no_file(root: Path, value: Any):
    access = FolderAccess.of(root)
    with pytest.raises(UsageError, match="names a file"):
        access.plain("moe_loads", value)
    for text in (
        "interleaved:4",
        "512:0.5,4096:0.5",
        "tp-cp-dp-pp",
        "speed op=aten::mm by=1.3",
        "compress encode=400GB/s",
    ):
        access.plain("schedule", text)


@pytest.mark.parametrize("name", ["../m.yaml", "m.yaml", "config.json", "a/b/c", "/etc/passwd", "", "mine.py:x"])
def test_a_name_is_no_file_outside(root: Path, name: str):
    with pytest.raises(UsageError, match="is no name|is outside"):
        FolderAccess.of(root).noun(name)


def test_a_system_may_be_a_file_below_the_root(root: Path):
    (root / "mine.yaml").write_text("")
    access = FolderAccess.of(root)
    assert access.noun("mine.yaml") == str(root / "mine.yaml")
    assert access.noun("dgx-h100") == "dgx-h100"
    assert access.noun("org/name-8B") == "org/name-8B"


def test_a_report_is_written_below_the_folder(root: Path, tmp_path: Path):
    access = FolderAccess.of(root, tmp_path)
    found = one(access, "report", paths=["run"], out="page.html")
    assert found["written"] == "page.html" and found["verdict"]
    assert "exists already" in refusal(access, "report", paths=["run"], out="page.html")
    assert "is outside" in refusal(access, "report", paths=["run", "../x"], out="other.html")
    assert "`out` is missing" in refusal(access, "report", paths=["run"])
    assert sorted(os.listdir(tmp_path)) == ["page.html"]


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
            wrong = {"model": "gpt2", "gpu": 16, "system": "dgx-h100"}
            return await client.call_tool("info", {"path": "job"}), await client.call_tool("predict", wrong)

    found, refused = asyncio.run(asyncio.wait_for(go(), 120))
    assert found.structured_content["ranks"] == 2
    assert refused.is_error and "did you mean `gpus`" in refused.content[0].text


def test_a_call_that_takes_too_much_is_ended_and_the_next_is_answered(root: Path):
    access = FolderAccess.of(root)
    worker = ToolProcess(access, limit_ns=60_000_000_000, memory_bytes=1 << 30)

    def query(sql: str) -> tuple[bool, Any]:
        return worker.answer("query", {"path": "job", "sql": sql})

    try:
        error, said = query("SELECT repeat('x', 2000000000)")
        assert error and "memory" in said.lower()
        worker._limit_ns = 100_000_000
        error, said = query("SELECT sum(a.range * b.range) FROM range(90000000) a, range(90000000) b")
        assert error and said.startswith("takes longer than 100 ms")
        worker._limit_ns = 60_000_000_000
        error, found = query("SELECT 7")  # of a new process
        assert (error, found["rows"]) == (False, [[7]])
    finally:
        worker.end()


def test_a_root_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["mcp", "--root", str(tmp_path / "nothing")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_without_the_package_the_command_says_what_to_install(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "mcp.server.lowlevel", None)
    assert main(["mcp", "--root", str(root)]) == 2
    assert "pip install 'etude[mcp]'" in capsys.readouterr().err
