"""An analysis is declared once, and is found in the commands, the docs and the report."""

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
import typer

from etude.analyse import catalogue
from etude.analyse.catalogue import ANALYSES, AnalysisEntry, command_lines, docs_rows, report_sections
from etude.model.run import Run
from etude.surface.cli import COMMANDS, main
from etude.surface.cli.app import app
from etude.surface.cli.commands import ANALYSE, file_of
from etude.surface.cli.registry import all_verbs, verb_named
from etude.surface.mcp import FolderAccess
from etude.surface.mcp.tools import tools
from etude.tell.report import compose
from etude.tell.report.catalogue_sections import DeclaredSection

DOCS = Path(__file__).resolve().parents[2] / "docs" / "analyse"
NEW = AnalysisEntry(
    command="novel", title="Novel", does="What is new", question="what is new here", section="breakdown"
)


def test_a_new_analysis_is_in_all_four() -> None:
    assert command_lines([NEW]) == {"novel": "What is new"}
    assert docs_rows([NEW]) == [("[Novel](novel.md)", "what is new here")]
    assert report_sections([NEW]) == ["breakdown"]
    assert NEW.formats == ("json", "csv", "md")


TOY = AnalysisEntry(
    command="toy-nodes", title="Toy nodes", does="Nodes by rank", question="how many nodes each rank has",
    table="toy:toy_nodes", columns={"rank": "text", "time_ns": "time"}, options={"least": "fewest nodes"},
)  # fmt: skip


def toy_nodes(run: Run, *, least: int = 0) -> pa.Table:
    rows = [{"rank": int(rank), "time_ns": 1000 * len(run.job.trace(int(rank)))} for rank in run.job.ranks]
    return pa.Table.from_pylist([row for row in rows if row["time_ns"] >= 1000 * least])


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package as if the catalogue had one line more, and the folder one file."""
    module = ModuleType("etude.analyse.toy")
    vars(module)["toy_nodes"] = toy_nodes
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(catalogue, "ANALYSES", (*ANALYSES, TOY))
    monkeypatch.setitem(COMMANDS, TOY.command, (ANALYSE, TOY.does))
    sections = (*compose._SHOW, DeclaredSection(TOY))
    monkeypatch.setattr(compose, "_SHOW", sections)


def test_one_declaration_is_a_command_a_tool_a_section_and_a_row(
    declared: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = str(tmp_path / "job")
    assert main(["generate", "gpt2", "--gpus", "2", "-o", job]) == 0
    capsys.readouterr()
    assert main(["toy-nodes", job, "--system", "dgx-h100", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["rank"] for row in rows] == [0, 1]
    assert main(["toy-nodes", job, "--system", "dgx-h100", "--least", "1000000000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert "toy_nodes" in tools(FolderAccess((tmp_path,), None), all_verbs())
    assert main(["report", job, "--system", "dgx-h100", "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "Toy nodes" in page and "How many nodes each rank has." in page
    assert docs_rows(catalogue.ANALYSES)[-1] == ("[Toy nodes](toy-nodes.md)", "how many nodes each rank has")


def test_every_analysis_is_declared_here_and_nowhere_else() -> None:
    """Its command is made from its declaration: the folder of commands has no file of it."""
    commands = Path(import_module("etude.surface.cli").__file__ or "").parent
    for one in ANALYSES:
        assert bool(one.asked) != bool(one.table), one.command
        assert not (commands / f"{file_of(one.command)}.py").exists(), one.command
        verb = verb_named(one.command)
        assert (verb.line, verb.tool) == (one.does, True), one.command
        assert (DOCS / one.page).exists(), one.command


def test_commands_of_the_panel_are_those_declared() -> None:
    assert {name: line for name, (panel, line) in COMMANDS.items() if panel == ANALYSE} == command_lines()


@pytest.mark.parametrize("one", ANALYSES, ids=lambda one: one.command)
def test_an_analysis_has_its_formats_its_page_and_its_section(one: AnalysisEntry) -> None:
    root = typer.main.get_group(app)
    _, command, _ = root.resolve_command(typer.Context(root), [one.command])
    assert command is not None
    names = {name for option in command.params for name in option.opts}
    assert {f"--{form}" for form in one.formats} <= names
    assert (DOCS / one.page).is_file()
    if one.section:
        shown = import_module(f"etude.tell.report.{one.section}")
        assert shown in import_module("etude.tell.report.compose")._SHOW


def test_the_page_of_analyses_has_the_declared_rows() -> None:
    text = (DOCS / "index.md").read_text("utf-8")
    table = [line for line in text.splitlines() if line.startswith("| [")]
    assert table[: len(ANALYSES)] == [f"| {page} | {question} |" for page, question in docs_rows()]
