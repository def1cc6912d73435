"""Programs small enough to solve in the head."""

import ctypes
import os

import pytest

from etude.decide.search import programs
from etude.decide.search.programs import IntegerProgram


def test_whole_numbers_are_not_a_rounded_line():
    # 3 n >= 10: 3.33 where parts are allowed, 4 where not
    for whole, best in ((False, 10 / 3), (True, 4.0)):
        program = IntegerProgram()
        program.row({program.variable(2.0, whole=whole): 3.0}, least=10.0)
        solved = program.solve()
        assert solved is not None and solved.values.tolist() == pytest.approx([best])


def test_nothing_satisfies_all_rows():
    program = IntegerProgram()
    n = program.variable(1.0, most=2.0)
    program.row({n: 1.0}, least=3.0)
    assert program.solve() is None


def test_a_program_without_variables():
    program = IntegerProgram()
    assert program.solve() is not None
    program.row({}, least=1.0)
    assert program.solve() is None


def test_rows_of_any_size_are_met():
    program = IntegerProgram()
    n = program.variable(1.0, whole=True)
    program.row({n: 1e9}, least=2.5e9)
    program.row({n: 1e-9}, most=3.5e-9)
    solved = program.solve()
    assert solved is not None and solved.values.tolist() == [3.0]


@pytest.mark.skipif(os.name != "posix", reason="file descriptors of C")
def test_what_the_solver_prints_does_not_reach_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    libc = ctypes.CDLL(None)
    with programs._no_stdout():
        libc.puts(b"a line of the solver")
        os.write(1, b"another one\n")
    libc.puts(b"ours")
    libc.fflush(None)
    assert capfd.readouterr().out == "ours\n"
