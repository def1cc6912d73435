"""Options that a kind of search does not read are refused by name."""

from pathlib import Path

import pytest

import etude
from etude.base.errors import UsageError
from etude.surface.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples" / "search"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["memory.yaml", "-j", "4"], "--workers is not read by a search over memory"),
        (["memory.yaml", "--seed", "3"], "--seed is not read by a search over memory"),
        (["regions.yaml", "--ray", "auto"], "--ray is not read by a search over regions"),
        (["split.yaml", "--again", "every=10s"], "--again is not read by a search over split"),
        (["plans.yaml", "--seed", "3"], "--seed is not read by a search over plans"),
        (["memory.yaml", "--json", "--top", "3"], "--top is read only without --json"),
    ],
)
def test_it_is_refused_by_name(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", str(EXAMPLES / words[0]), *words[1:]]) == 2
    assert said in capsys.readouterr().err


def test_the_systems_of_an_axis_are_all_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", "gpt2", "--gpus", "4", "--system", "dgx-h100", "--over", "system=dgx-a100|dgx-h200,tp"]
    assert main(words) == 2
    assert "--system was given, but this run does not read it" in capsys.readouterr().err


def test_python_callers_are_told_the_same() -> None:
    with pytest.raises(UsageError, match="`workers` is not read by a search over memory"):
        etude.search(EXAMPLES / "memory.yaml", workers=4)
