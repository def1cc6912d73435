"""Programs small enough to solve in the head."""

import pytest

from etude.search.programs import Program


def test_whole_numbers_are_not_a_rounded_line():
    # 3 n >= 10: 3.33 where parts are allowed, 4 where not
    for whole, best in ((False, 10 / 3), (True, 4.0)):
        program = Program()
        program.row({program.variable(2.0, whole=whole): 3.0}, least=10.0)
        solved = program.solve()
        assert solved is not None and solved.values.tolist() == pytest.approx([best])


def test_nothing_satisfies_all_rows():
    program = Program()
    n = program.variable(1.0, most=2.0)
    program.row({n: 1.0}, least=3.0)
    assert program.solve() is None


def test_a_program_without_variables():
    program = Program()
    assert program.solve() is not None
    program.row({}, least=1.0)
    assert program.solve() is None


def test_rows_of_any_size_are_met():
    program = Program()
    n = program.variable(1.0, whole=True)
    program.row({n: 1e9}, least=2.5e9)
    program.row({n: 1e-9}, most=3.5e-9)
    solved = program.solve()
    assert solved is not None and solved.values.tolist() == [3.0]
