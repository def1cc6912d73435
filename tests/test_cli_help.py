"""`--help` of every command, at 80 columns."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer

from etude.surface.cli import COMMANDS, main
from etude.surface.cli.app import app
from etude.surface.cli.commands import file_of
from etude.surface.cli.help import FEW, options
from etude.surface.cli.registry import verbs_in


def inside(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from inside(f"{words} {name}", inner)


@cache
def whole() -> Any:
    """All commands; made once, since Typer reads every option of those that are loaded."""
    return typer.main.get_group(app)


def commands(name: str) -> list[tuple[str, Any]]:
    """The command of these words, and those behind it."""
    _, command, _ = whole().resolve_command(typer.Context(whole()), name.split())
    inner = verbs_in(file_of(name)) if name in COMMANDS else {}
    behind = [words for words in inner if words.startswith(f"{name} ")]
    return list(inside(name, command)) + [found for words in behind for found in commands(words)]


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
            assert not {"Options", None} & set(panels), f"{words}: see cli/panels.py"


def test_an_old_spelling_works_and_is_not_shown() -> None:
    command = typer.main.get_command(_two_names())
    from etude.surface.cli.help import named

    assert [named(option) for option in command.params if option.name == "ran_on"] == ["--ran-on TEXT"]


def _two_names() -> typer.Typer:
    small = typer.Typer()

    @small.command()
    def go(ran_on: str = typer.Option("", "--ran-on", "--device")) -> None: ...

    return small


OLD: dict[str, list[tuple[str, str]]] = {
    "report": [("--ran-on", "--device")],
    "metrics": [("--ran-on", "--device")],
    "compare": [("--ran-on", "--device")],
    "roofline": [("--ran-on", "--device")],
    "similarity": [("--ran-on", "--device")],
    "energy": [("--ran-on", "--device")],
    "archive add": [("--ran-on", "--device")],
    "collect": [("--allocations", "--memory")],
    "ops graph": [("--memory", "--room")],
    "ops place": [("--memory", "--room")],
}
"""Options that were renamed, and the names that scripts may still say."""


@pytest.mark.parametrize("words", OLD)
def test_renamed_options_keep_their_old_names(words: str) -> None:
    _, command = next(found for found in commands(words.split()[0]) if found[0] == words)
    names = [option.opts for option in command.params]
    for new, old in OLD[words]:
        assert any(opts[0] == new and old in opts for opts in names), (new, old)


def test_calibrate_takes_system_as_ran_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "nowhere/", "--system", "dgx-h100", "-o", "s.yaml"]) == 2
    told = capsys.readouterr().err
    assert "needs the system" not in told


@pytest.mark.parametrize("name", COMMANDS)
def test_system_is_where_something_is_simulated(name: str) -> None:
    for words, command in commands(name):
        for option in options(command):
            if "--system" in option.opts[:1] and words != "simulate astra":
                assert "imulate" in option.help, (words, option.help)


QUAINT = re.compile(
    r"its likes|for ever\b|\btorn\b|\btold\b|laid down|stands out|beside one another|is no multiple|how manieth|nought"
)
FRAGMENT = re.compile(r"^(Of|Whose|In which|That|Until|Between) [a-z]")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_in_plain_words(name: str) -> None:
    for words, command in commands(name):
        texts = [command.help or "", *(getattr(p, "help", None) or "" for p in command.params)]
        assert [text for text in texts if QUAINT.search(text)] == [], words
        assert [text for text in texts[1:] if FRAGMENT.search(text)] == [], words
