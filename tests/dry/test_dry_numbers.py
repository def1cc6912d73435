"""Numbers in a dry run: a program's own are known; those of chance, of weights and of other ranks are not."""

import sys
from pathlib import Path

import pytest

import etude
from etude.surface.cli import main

pytest.importorskip("torch")
PROGRAMS = Path(__file__).parent / "programs"


def dry(out: Path, program: str, *words: str, options: tuple[str, ...] = ()) -> int:
    return main(["collect", "--dry", "-o", str(out), *options, "--", sys.executable, str(PROGRAMS / program), *words])


@pytest.mark.parametrize("options", [(), ("--device", "h100")])
def test_numbers_of_the_program_are_known_on_any_device(options: tuple[str, ...], tmp_path: Path) -> None:
    assert dry(tmp_path / "job", "dry_numbers.py", "own", options=options) == 0
    trace = etude.open(tmp_path / "job").traces[0]
    squared = next(i for i in range(len(trace)) if trace.text("name", i) == "aten::pow")
    assert trace.text("in_shapes", squared).startswith("[[3, 16]")  # rows 0, 3 and 6 of 8


@pytest.mark.parametrize(
    ("what", "line"),
    [("chance", "if drawn > 0.5:"), ("weights", "if lengths.max() > 100:"), ("gradient", "if total > 100:")],
)
def test_no_number_is_made_up(what: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry(tmp_path / "job", "dry_numbers.py", what, options=("--world", "2")) == 2
    told = capsys.readouterr().err
    assert "decides by the value of a tensor" in told and line in told and "Traceback" not in told
    assert not (tmp_path / "job").exists()


ALIKE = "numbers that the program decides by and ranks exchange are taken to be the same on every rank"


@pytest.mark.parametrize("options", [(), ("--device", "h100")])
def test_numbers_that_all_ranks_have_are_known_after_an_exchange(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry(tmp_path / "job", "dry_numbers.py", "alike", options=("--world", "4", *options)) == 0
    assert ALIKE in capsys.readouterr().err
    assert dry(tmp_path / "own", "dry_numbers.py", "own", options=("--world", "4", *options)) == 0
    assert ALIKE not in capsys.readouterr().err


def test_ranks_that_exchange_different_numbers_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry(tmp_path / "job", "dry_numbers.py", "rank", options=("--world", "4")) == 2
    told = capsys.readouterr().err
    assert "[0] on rank 0 and [3] on rank 3: `if here.item() > 100:`" in told and "Traceback" not in told
    place = told.partition("error: ")[2].partition(": rank 0")[0]
    answer = ("--answer", f"{place}=6")
    assert dry(tmp_path / "job", "dry_numbers.py", "rank", options=("--world", "4", *answer)) == 0
    assert ALIKE not in capsys.readouterr().err


def test_generation_ends_at_its_longest_with_one_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    assert dry(tmp_path / "free", "dry_generate.py", options=("--whole",)) == 0  # nothing but its length ends it
    assert dry(tmp_path / "job", "dry_generate.py", "2") == 2
    told = capsys.readouterr().err
    place = told.partition("error: ")[2].partition(": rank 0")[0]
    assert dry(tmp_path / "job", "dry_generate.py", "2", options=("--whole", "--answer", f"{place}=0")) == 0
    products = [
        sum(trace.text("name", i) in ("aten::mm", "aten::addmm") for i in range(len(trace)))
        for trace in (etude.open(tmp_path / name).traces[0] for name in ("free", "job"))
    ]
    assert products == [8 * (2 * 7 + 1)] * 2  # 8 words, 2 layers of 7 products each, and the head
