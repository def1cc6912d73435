"""Kernels of one run found in another: points by hand, the best assignment against all permutations."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.analyse.kernel_match import assign, match_kernels
from etude.base.errors import UsageError
from etude.machine.system import Device
from etude.model.run import Run
from etude.model.schema import Kind
from etude.surface.cli import main
from timed_jobs import timed

DEVICE = Device(name="d", peak_flop_per_s={"bf16": 1e12}, memory_bandwidth_bytes_per_s=1e11, memory_bytes=10**9)
"""1,000 FLOPs and 100 bytes a ns: the ridge is at 10 FLOPs a byte."""


def run(*kernels: tuple[str, int, int, int]) -> Run:
    """Kernels one after the other: name, FLOPs, bytes, ns."""
    rows, now = [], 0
    for name, flops, size, lasts in kernels:
        rows.append((work(name, flops, size), now, now + lasts))
        now += lasts
    return timed(rows)


def work(name: str, flops: int, size: int) -> dict[str, Any]:
    return {"kind": Kind.COMP, "name": name, "flops": flops, "tensor_bytes": size, "cpu": 0}


A = run(("x", 60_000, 2_000, 100), ("y", 0, 9_000, 100))
B = run(("p", 0, 4_000, 50), ("q", 30_000, 1_000, 50))


def test_points_and_distances_by_hand() -> None:
    """x is at 0.6 of the peak, 0.2 of the bandwidth, intensity 30 of 30 + 10, half of the time: q is the same point;
    y has 0.9 of the bandwidth and p 0.8."""
    x, y = match_kernels(A, B, DEVICE).to_pylist()
    assert (x["kernel"], x["peak_part"], x["bandwidth_part"], x["intensity"], x["share"]) == ("x", 0.6, 0.2, 30, 0.5)
    assert (x["nearest"], x["distance"], x["assigned"], x["assigned_distance"]) == ("q", 0, "q", 0)
    assert (y["nearest"], y["assigned"], y["assigned_size_bytes"]) == ("p", "p", 4_000)
    assert y["distance"] == y["assigned_distance"] == pytest.approx(0.1)


def test_kernels_of_one_name_and_work_are_one_whatever_their_shapes() -> None:
    rows = [(work("x", 600, 20) | {"in_shapes": shape}, at, at + 1) for at, shape in enumerate(("[[1]]", "[[2]]"))]
    (row,) = match_kernels(timed(rows), timed(rows), DEVICE).to_pylist()
    assert (row["count"], row["share"], row["distance"]) == (2, 1, 0)


def test_a_kernel_without_a_partner_is_as_far_as_from_nothing() -> None:
    """z has 0.5 of the bandwidth in a third of the time; alone of its run it has no partner, either way round."""
    more = run(("x", 60_000, 2_000, 100), ("y", 0, 9_000, 100), ("z", 0, 5_000, 100))
    third = [row for row in match_kernels(more, A, DEVICE).to_pylist() if row["assigned"] is None]
    assert [row["kernel"] for row in third] == ["z"]
    assert third[0]["assigned_distance"] == pytest.approx(np.hypot(0.5, 1 / 3))
    *_, last = match_kernels(A, more, DEVICE).to_pylist()
    assert (last["kernel"], last["nearest"], last["assigned"]) == (None, None, "z")
    assert last["assigned_distance"] == third[0]["assigned_distance"]


def test_without_a_device_rates_are_parts_of_the_highest() -> None:
    x, y = match_kernels(A, B).to_pylist()
    assert (x["peak_part"], y["bandwidth_part"]) == (1, 1)


def test_a_run_of_which_no_work_is_known_is_refused() -> None:
    idle = timed([({"kind": Kind.COMP, "name": "x", "cpu": 0}, 0, 10)])
    with pytest.raises(UsageError, match="second run has no kernel"):
        match_kernels(A, idle, DEVICE)


@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(st.integers(0, 20), min_size=n, max_size=n),
                                                    min_size=n, max_size=n)))  # fmt: skip
def test_the_assignment_is_the_best_of_all(rows: list[list[int]]) -> None:
    cost = np.array(rows, np.float64)
    found = assign(cost)
    assert sorted(found.tolist()) == list(range(len(rows)))
    best = min(sum(rows[i][k] for i, k in enumerate(order)) for order in permutations(range(len(rows))))
    assert cost[np.arange(len(rows)), found].sum() == best


def test_the_command_by_both_of_its_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = str(tmp_path / "job")
    assert main(["generate", "gpt2", "--gpus", "1", "-o", job]) == 0
    for name in ("similarity", "likeness"):
        capsys.readouterr()
        assert main([name, job, job, "--kernels"]) == 0
        told = capsys.readouterr()
        assert "simulated on dgx-h100" in told.err and "distance between the two: 0.0000" in told.err
        assert "aten::mm" in told.out
    assert main(["similarity", job, job, "--device", "h100"]) == 2
