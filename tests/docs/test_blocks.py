"""Every code block and command of every page runs, or says why not."""

import json
import re
import shlex
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from etude.surface.cli import main

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "docs"))
import blocks  # noqa: E402
from stage import captures, stage  # noqa: E402

ELSEWHERE = ("api.md",)  # its examples run in tests/test_public.py
PAGES = [page for page in blocks.pages() if blocks.blocks(page) and page.name not in ELSEWHERE]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stage(tmp_path_factory.mktemp("docs") / "stage")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page_run(page: Path, base: Path) -> None:
    if page.name == "case-study.md" and captures() is None:
        pytest.skip("needs the reference data folder ../shared")
    with blocks.staged(base):
        blocks.Runner().page(page)


def test_what_is_not_run_says_why_and_names_what_exists() -> None:
    for page in PAGES:
        for block in blocks.blocks(page):
            if block.mark in ("slow", "not run"):
                assert len(block.said.split()) >= 2, f"{block.where}: say why"
            for path in re.findall(r"\b(?:tests|benchmarks|examples)/[\w./-]*\w", block.said):
                assert (ROOT / path).exists(), f"{block.where}: no {path}"


def test_most_commands_are_run() -> None:
    counts = {"run": 0, "not run": 0}
    for page in PAGES:
        for block in blocks.blocks(page):
            if block.language in ("", "console") and block.mark != "file":
                counts["not run" if block.mark in ("not run", "slow") else "run"] += len(blocks.steps(block))
    assert counts["run"] > 2 * counts["not run"], counts


@cache
def _commands() -> Any:
    """All commands as Click has them: made once, which takes a second."""
    import typer

    from etude.surface.cli.app import app

    return typer.main.get_group(app)


def _unknown(words: list[str]) -> str:
    """The first word of a command line that Etude does not know, if there is one."""
    import click

    group = _commands()
    try:
        _, here, rest = group.resolve_command(click.Context(group), list(words))
    except click.UsageError:
        return words[0]
    while hasattr(here, "get_command") and rest and (inner := here.get_command(click.Context(here), rest[0])):
        here, rest = inner, rest[1:]
    options = {name for parameter in here.params for name in (*parameter.opts, *parameter.secondary_opts)}
    given = [word.partition("=")[0] for word in rest if re.match(r"--\w", word)]
    return next((word for word in given if word not in options | {"--help"}), "")


def test_commands_inside_sentences_have_options_that_exist() -> None:
    wrong = []
    for page in (page for page in blocks.pages() if page.name != "roadmap.md"):  # it names what is yet to come
        prose = blocks.BLOCK.sub("", page.read_text())
        for command in re.findall(r"(?<!`)`etude ([a-z][^`\n]*)`", prose):
            if " -- " in command or "\\" in command or "|" in command:
                continue
            try:
                words = shlex.split(command)
            except ValueError:
                continue
            if unknown := _unknown(words):
                wrong.append(f"{page.relative_to(ROOT)}: `etude {command}`: {unknown}")
    assert not wrong, "\n".join(wrong)


def test_options_of_serve_beside_those_of_vidur_exist() -> None:
    """Options in the right column that stand alone are those of `etude serve`."""
    page = (ROOT / "docs" / "from-vidur.md").read_text()
    rows = [line.split("|")[2] for line in page.splitlines() if line.startswith("| ")]
    given = [words for row in rows for words in re.findall(r"`(--[^`]*)`", row)]
    assert len(given) > 10
    assert [words for words in given if _unknown(["serve", "llama3-8b", *shlex.split(words)])] == []


def test_the_hour_of_mooncake_is_as_the_page_says(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last row of the table: found, mean and p99 of the first token, as they are printed."""
    file = shared / "requests" / "mooncake_conversation.jsonl.gz"
    words = ["serve", "llama3-8b", "--replicas", "8", "--system", "dgx-h100", "--cache", "prefix", "--router", "prefix"]
    assert main([*words, "--requests", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    part, ttft = found["cache_hit_tokens"] / found["prompt_tokens"], found["ttft_s"]
    row = f"| `--cache prefix --router prefix` | {part:.1%} | {ttft['mean']:.3f} s | {ttft['p99']:.2f} s |"
    assert row in (ROOT / "docs" / "serve.md").read_text(), row


def test_an_output_may_leave_lines_out_and_must_else_be_the_same() -> None:
    assert blocks.matches("a\n...\nd\n", "a\nb\nc\nd\n")
    assert blocks.matches("...\nd\n", "d\n")
    assert not blocks.matches("a\n...\nd\n", "a\nb\nc\n")
    assert not blocks.matches("a\n", "a\nb\n")


def test_commands_of_a_block_are_those_that_a_shell_would_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('<!-- exit: 1 -->\n```\netude info a  # what\netude x \\\n    --y "b  # c"; etude z\n```\n')
    (block,) = blocks.blocks(page)
    assert (block.mark, block.said) == ("exit", "1")
    assert blocks.steps(block)[0].command == "etude info a"


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "zensical.toml").read_text()
    assert [page.name for page in blocks.pages()[1:] if f'"{page.relative_to(ROOT / "docs")}"' not in nav] == []
