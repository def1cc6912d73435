"""Forms of one operator: names and shapes as PyTorch records them."""

from pathlib import Path

import pytest

import etude
from etude.analyse.compare import compare, per_step, similarity
from etude.analyse.variants import base_name, one_form
from etude.model.schema import Kind
from timed_jobs import timed


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("aten::mm", "aten::mm"),
        ("aten::mm.out", "aten::mm"),
        ("aten::mm_out", "aten::mm"),
        ("aten::add_.Tensor", "aten::add"),
        ("aten::add.Tensor", "aten::add"),
        ("aten::_fused_adamw_", "aten::_fused_adamw"),
        ("aten::__and__", "aten::__and__"),
        ("aten::addmm", "aten::addmm"),
        ("aten::native_dropout", "aten::native_dropout"),
        ("autograd::engine::evaluate_function: MmBackward0", "autograd::engine::evaluate_function: MmBackward0"),
        ("sm90_gemm_out", "sm90_gemm_out"),
        ("", ""),
    ],
)
def test_a_name_without_its_form(name: str, base: str) -> None:
    assert base_name(name) == base


def op(name: str, shapes: str) -> dict[str, object]:
    return {"kind": Kind.COMP, "name": name, "cpu": 1, "thread": 1, "in_shapes": shapes}


def rows(*pair: list[tuple[dict[str, object], int, int]]) -> dict[tuple[str, str], tuple[str, float, float, str]]:
    found = compare(*(timed(nodes) for nodes in pair))
    return {(r["name"], r["shapes"]): (r["change"], r["time_a_ns"], r["time_b_ns"], r["forms"])
            for r in found.to_pylist()}  # fmt: skip


def test_the_tensor_to_write_to_is_no_input() -> None:
    plain, out = "[[4, 8], [8, 2]]", "[[4, 8], [8, 2], [4, 2]]"
    eager = [(op("aten::mm", plain), 0, 10), (op("aten::addmm", f"[[2], {plain[1:-1]}, [], []]"), 10, 30)]
    compiled = [(op("aten::mm", out), 0, 12), (op("aten::addmm", f"[[2], {plain[1:-1]}, [], [], [4, 2]]"), 12, 32)]
    assert rows(eager, compiled) == {
        ("aten::mm", plain): ("slower", 10, 12, "aten::mm, aten::mm(out=)"),
        ("aten::addmm", f"[[2], {plain[1:-1]}, [], []]"): ("same", 20, 20, "aten::addmm, aten::addmm(out=)"),
    }


def test_overload_in_place_and_out_are_one_operation() -> None:
    shapes = "[[4], [4], []]"
    a = [(op("aten::add", shapes), 0, 10), (op("aten::add_", shapes), 10, 15)]
    b = [(op("aten::add.Tensor", shapes), 0, 10), (op("aten::add.out", "[[4], [4], [], [4]]"), 10, 15)]
    assert list(rows(a, b)) == [("aten::add", shapes)]


def test_a_form_that_both_have_keeps_its_name() -> None:
    a = [(op("aten::add_", "[[4], [4], []]"), 0, 10)]
    assert list(rows(a, a)) == [("aten::add_", "[[4], [4], []]")]
    assert rows(a, a)["aten::add_", "[[4], [4], []]"][3] == ""


@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        ("aten::max", "[[4, 4]]", "[[4, 4], [4, 4]]"),  # a reduction, and the larger of two
        ("aten::mul", "[[4]]", "[[4], []]"),  # a scalar is no tensor to write to
        ("aten::mm", "[[4, 8], [8, 2]]", "[[4, 9], [9, 2], [4, 2]]"),
        ("aten::mm", "[[4, 8], [8, 2]]", "not shapes"),
        ("kernel", "[[4]]", "[[4], [4]]"),
    ],
)
def test_other_work_stays_apart(name: str, a: str, b: str) -> None:
    keys = [("compute", name, a), ("compute", name, b)]
    assert one_form(keys) == {key: key for key in keys}


def test_eager_and_compiled_pair_their_products(shared: Path) -> None:
    """One training step, eager and compiled: as many products, those of the second with `out=`."""
    folder = shared / "traces/torch_cpu"
    a, b = (etude.open_run(folder / f"{name}.rank0.kineto.json.gz") for name in ("train_1p", "train_1p_compiled"))
    found = [r for r in compare(a, b).to_pylist() if r["name"] in ("aten::mm", "aten::addmm")]
    assert {r["count_a"] == r["count_b"] for r in found} == {True}
    assert {r["forms"] for r in found} == {"aten::mm, aten::mm(out=)", "aten::addmm, aten::addmm(out=)"}


def test_own_time_of_an_operator_is_the_operators() -> None:
    """Where the host is the device, time between the operators that one calls is its own, not that of `host`."""
    a = [(op("aten::linear", "[[4]]"), 0, 30), (op("aten::mm", "[[4, 8], [8, 2]]") | {"parent": 0}, 10, 20),
         ({"kind": Kind.COMP, "name": "host", "cpu": 1, "thread": 1, "parent": 0}, 0, 10),
         ({"kind": Kind.COMP, "name": "host", "cpu": 1, "thread": 1, "parent": 0}, 20, 30)]  # fmt: skip
    assert {key[0]: value[1] for key, value in rows(a, a).items()} == {"aten::linear": 20, "aten::mm": 10}


def test_runs_of_different_length_are_compared_by_the_step() -> None:
    gemm = {"kind": Kind.COMP, "name": "gemm", "cpu": 0, "stream": 7}
    two = timed([(gemm | {"step": s}, 100 * s, 100 * s + 10) for s in range(2)])
    five = timed([(gemm | {"step": s}, 100 * s, 100 * s + 12) for s in range(5)])
    assert per_step(two, five) == (0.5, 0.2)
    assert per_step(two, two) == (1.0, 1.0)
    (row,) = compare(two, five).to_pylist()
    assert (row["change"], row["count_a"], row["count_b"]) == ("slower", 1.0, 1.0)
    assert (row["time_a_ns"], row["time_b_ns"], row["delta_ns"]) == pytest.approx((10, 12, 2))
    assert similarity(compare(two, five))["structure"] == 1.0
