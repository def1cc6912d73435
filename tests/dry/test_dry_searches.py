"""Dry runs of programs whose optimizer decides by values: LBFGS goes on to its longest."""

import sys
from pathlib import Path

import pytest

import etude
from etude.surface.cli import main

pytest.importorskip("torch")
PROGRAM = Path(__file__).parent / "programs" / "dry_searches.py"


def dry(out: Path, kind: str, *options: str) -> int:
    return main(["collect", "--dry", "-o", str(out), *options, "--", sys.executable, str(PROGRAM), kind])


# Of four turns: the closure is called first, and after each turn but the last; a line search calls it in each turn.
@pytest.mark.parametrize(("kind", "closures"), [("plain", 1 + 3), ("search", 1 + 4)])
def test_lbfgs_goes_on_to_its_longest(
    kind: str, closures: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry(tmp_path / "job", kind) == 0
    assert "assumed: LBFGS goes on to max_iter" in capsys.readouterr().err
    trace = etude.open(tmp_path / "job").traces[0]
    names = [trace.text("name", i) for i in range(len(trace))]
    assert names.count("aten::addmm") == closures


def test_a_line_of_the_search_has_an_answer(tmp_path: Path) -> None:
    """That no gradient is left ends a step after its first closure."""
    import inspect

    from torch.optim import lbfgs

    lines, first = inspect.getsourcelines(lbfgs.LBFGS.step)
    number = first + next(i for i, line in enumerate(lines) if line.strip() == "if opt_cond:")
    assert dry(tmp_path / "job", "plain", "--answer", f"lbfgs.py:{number}=1") == 0
    trace = etude.open(tmp_path / "job").traces[0]
    assert [trace.text("name", i) for i in range(len(trace))].count("aten::addmm") == 1


def test_what_the_closure_asks_is_no_decision_of_the_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry(tmp_path / "job", "asks") == 2
    assert 'if kind == "asks" and loss > 100:' in capsys.readouterr().err
