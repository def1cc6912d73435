import pytest

from etude.analyse.compare import breakdowns, compare, similarity
from etude.model.schema import Kind
from timed_jobs import timed

GEMM = {"kind": Kind.COMP, "name": "gemm", "stream": 7, "cpu": 0}
ADD = {"kind": Kind.COMP, "name": "add", "stream": 7, "cpu": 0}
NORM = {"kind": Kind.COMP, "name": "norm", "stream": 7, "cpu": 0}


def test_the_difference_is_of_count_and_of_speed() -> None:
    a = timed([(GEMM, 0, 10), (ADD, 10, 15)])
    b = timed([(GEMM, 0, 20), (GEMM, 20, 40), (NORM, 40, 43)])
    found = compare(a, b)
    rows = {r["name"]: r for r in found.to_pylist()}
    gemm = rows["gemm"]
    assert (gemm["change"], gemm["delta_ns"], gemm["by_count_ns"], gemm["by_speed_ns"]) == ("more", 30, 10, 20)
    assert (rows["add"]["change"], rows["add"]["delta_ns"]) == ("gone", -5)
    assert (rows["norm"]["change"], rows["norm"]["delta_ns"]) == ("new", 3)
    alike = similarity(found)
    assert alike == {"structure": pytest.approx(1 / 4), "time": pytest.approx(10 / 40), "score": pytest.approx(1 / 16)}
    parts = {r["part"]: r["delta_ns"] for r in breakdowns(a, b).to_pylist()}
    assert (parts["span_ns"], parts["compute_ns"]) == (28, 28)


def test_a_run_is_like_itself() -> None:
    a = timed([(GEMM, 0, 10), (ADD, 10, 15)])
    found = compare(a, a)
    assert similarity(found) == {"structure": 1.0, "time": 1.0, "score": 1.0}
    assert {r["change"] for r in found.to_pylist()} == {"same"}


def test_by_operators_runs_on_different_devices_are_alike() -> None:
    """One operator launches one kernel here and two of other names there."""
    op = {"kind": Kind.COMP, "name": "aten::mm", "thread": 1, "cpu": 1}
    kernel = {"kind": Kind.COMP, "stream": 7, "cpu": 0, "parent": 0}
    one = timed([(op, 0, 10), (kernel | {"name": "sm90_gemm"}, 10, 110)])
    two = timed([(op, 0, 10), (kernel | {"name": "Cijk_gemm"}, 10, 90), (kernel | {"name": "reduce"}, 90, 160)])
    assert similarity(compare(one, two))["structure"] == 0
    found = compare(one, two, operators=True)
    assert [(r["name"], r["change"], r["time_a_ns"], r["time_b_ns"]) for r in found.to_pylist()] == [
        ("aten::mm", "slower", 100, 150)
    ]
    assert similarity(found)["structure"] == 1
