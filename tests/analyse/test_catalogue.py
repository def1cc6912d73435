"""An analysis is declared once, and is found in the commands, the docs and the report."""

from importlib import import_module
from pathlib import Path

import pytest
import typer

from etude.analyse.catalogue import ANALYSES, AnalysisEntry, command_lines, docs_rows, report_sections
from etude.surface.cli import COMMANDS
from etude.surface.cli.app import app
from etude.surface.cli.commands import ANALYSE

DOCS = Path(__file__).resolve().parents[2] / "docs" / "analyse"
NEW = AnalysisEntry(
    command="novel", title="Novel", does="What is new", question="what is new here", section="breakdown"
)


def test_a_new_analysis_is_in_all_four() -> None:
    assert command_lines([NEW]) == {"novel": "What is new"}
    assert docs_rows([NEW]) == [("[Novel](novel.md)", "what is new here")]
    assert report_sections([NEW]) == ["breakdown"]
    assert NEW.formats == ("json", "csv", "md")


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
