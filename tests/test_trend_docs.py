"""The commands of the pages on trends and archives run as they are written."""

import shlex
from pathlib import Path

import pytest

from etude.cli import main

ROOT = Path(__file__).resolve().parent.parent
MARK = "<!-- run by tests/test_trend_docs.py -->\n```\n"


def commands(page: str) -> list[list[str]]:
    blocks = (ROOT / "docs" / page).read_text().split(MARK)[1:]
    lines = [line for block in blocks for line in block.partition("```")[0].splitlines()]
    return [shlex.split(line.partition("  #")[0])[1:] for line in lines]


@pytest.mark.parametrize("page", ["analyse/trend.md", "archive.md"])
def test_the_commands_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "sample").symlink_to(ROOT / "src" / "etude" / "sample")
    monkeypatch.chdir(tmp_path)
    found = commands(page)
    assert found
    for argv in found:
        assert main(argv) == 0, (argv, capsys.readouterr().err)
