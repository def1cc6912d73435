"""What stops a program is said with the program's own line, and with what can be done about it."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.capture.dry.launch import refuse_problem
from etude.capture.dry.post import OtherRankError, Post
from etude.capture.dry.processes import starts_python
from etude.capture.dry.worker import _problem


def said(raises: Any, world: int = 1, on_device: bool = True) -> tuple[str, str]:
    """(The sentence with its place, the hint.)"""
    with pytest.raises(Exception) as raised:
        raises()
    with pytest.raises(UsageError) as refused:
        refuse_problem(0, _problem(raised.value), world=world, on_device=on_device)
    return str(refused.value), refused.value.hint


def test_a_missing_file_is_said_at_the_line_that_reads_it() -> None:
    text, hint = said(lambda: np.memmap("/nowhere/train.bin", dtype=np.uint16, mode="r"))
    assert text.startswith("test_dry_problems.py:") and "'/nowhere/train.bin'" in text
    assert hint == "a dry run reads what the program reads: a file of few samples with the same shapes is enough"


def test_an_assertion_without_words_is_its_line() -> None:
    def divides() -> None:
        ranks = 3
        assert ranks % 4 == 0

    with pytest.raises(AssertionError) as raised:
        divides()
    raised.value.args = ()  # pytest puts its own words there
    with pytest.raises(UsageError) as refused:
        refuse_problem(0, _problem(raised.value), world=3, on_device=True)
    assert "AssertionError: `assert ranks % 4 == 0`" in str(refused.value)
    assert refused.value.hint == "the program has 3 ranks (--world): are its sizes multiples of that?"


def test_one_rank_is_not_asked_for_its_number() -> None:
    def fails() -> None:
        raise ValueError("no")

    assert "--world" not in said(fails)[1]
    assert "--device h100" in said(fails, on_device=False)[1]


@pytest.mark.parametrize(
    "command", [["python3.11", "-u", "work.py"], "A=1 torchrun work.py", ["/bin/sh", "-c", b"srun x"]]
)
def test_commands_that_start_programs_of_python(command: Any) -> None:
    assert starts_python(command)


@pytest.mark.parametrize("command", [["git", "log", "train.py"], ["python", "-m", "pip", "freeze"], "nvidia-smi -L"])
def test_commands_that_a_program_may_run(command: Any) -> None:
    assert not starts_python(command)


def test_a_rank_whose_sender_ended_without_sending_is_run_again_with_more(tmp_path: Path) -> None:
    """Rank 2 ended since it needs rank 1, which was not run: rank 0 needs rank 2 as before, and that is no error."""
    (tmp_path / "ended.2").write_text("0")
    (tmp_path / "all_started").touch()
    post = Post(tmp_path, 0, {"ranks": [0, 2], "stands": {}}, contextlib.nullcontext)
    with pytest.raises(OtherRankError) as needed:
        post.take([], 2)
    assert needed.value.rank == 2
