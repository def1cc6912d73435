"""`--help` of every command, at 80 columns."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from etude.cli import COMMANDS, main
from etude.cli.app import app
from etude.cli.help import FEW, options

HOLDS_ALL = 3
"""Options that may stay in the panel `Options` of a command that has others."""


def inside(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from inside(f"{words} {name}", inner)


def commands(name: str) -> list[tuple[str, Any]]:
    root = typer.main.get_group(app)
    _, command, _ = root.resolve_command(typer.Context(root), name.split())
    return list(inside(name, command))


@pytest.mark.parametrize("name", COMMANDS)
def test_names_are_whole_at_80_columns_and_many_options_have_panels(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words, command in commands(name):
        assert main([*words.split(), "--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        assert not [line for line in lines if "…" in line]
        shown = {word for line in lines for word in line.replace(",", " ").split()}
        visible = options(command)
        for option in visible:
            if option.name != "help":
                first = next(opt for opt in option.opts if opt.startswith("--"))
                assert {first, *option.secondary_opts[:1]} <= shown, words
        panels = [option.rich_help_panel for option in visible]
        if len(visible) > FEW:
            assert len(set(panels)) > 1, f"{words}: its options are in one panel"
            assert panels.count("Options") + panels.count(None) <= HOLDS_ALL, f"{words}: see cli/panels.py"


def test_an_old_spelling_works_and_is_not_shown() -> None:
    command = typer.main.get_command(_two_names())
    from etude.cli.help import named

    assert [named(option) for option in command.params if option.name == "ran_on"] == ["--ran-on TEXT"]


def _two_names() -> typer.Typer:
    small = typer.Typer()

    @small.command()
    def go(ran_on: str = typer.Option("", "--ran-on", "--device")) -> None: ...

    return small
