"""Why runs differ: hand-worked runs, sums on random ones, and pairs of real captures."""

import random
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.analyse.breakdown import breakdown
from etude.analyse.reasons import host_side, reasons
from etude.capture.ingest.runs import WantedTimes
from etude.model.run import Run
from etude.model.schema import Collective, Kind
from timed_jobs import timed

AS_RECORDED = WantedTimes(as_recorded=True)
CALL = {"kind": Kind.COMP, "cpu": 1, "thread": 1}
KERNEL = {"kind": Kind.COMP, "cpu": 0, "stream": 7}
REDUCE = {"kind": Kind.COLL, "name": "reduce", "cpu": 0, "stream": 9, "collective": Collective.ALL_REDUCE}


def told(a: Run, b: Run) -> dict[tuple[str, str], dict[str, Any]]:
    return {(r["part"], r["what"]): r for r in reasons(a, b).to_pylist()}


def launched(*kernels: tuple[str, int, int, int]) -> Run:
    """Operators of 5 ns each that launch one kernel: name, start of the operator, start and end of the kernel."""
    nodes: list[Any] = []
    for i, (name, called, start, end) in enumerate(kernels):
        nodes.append((CALL | {"name": name, "correlation": i}, called, called + 5))
        nodes.append((KERNEL | {"name": f"k_{name}", "correlation": i, "parent": 2 * i, "data": [2 * i]}, start, end))
    return timed(nodes)


def test_the_list_is_ranked_and_sums_to_the_difference() -> None:
    """a: mm 10..30, add 30..40: 30. b: mm 10..55, idle until the host launches, add 80..90: 80."""
    a = launched(("aten::mm", 0, 10, 30), ("aten::add", 8, 30, 40))
    b = launched(("aten::mm", 0, 10, 55), ("aten::add", 74, 80, 90))
    rows = reasons(a, b).to_pylist()
    assert [(r["part"], r["what"], r["change"], r["delta_ns"], r["share"]) for r in rows] == [
        ("compute", "aten::mm", "slower", 25, 0.5),
        ("idle", "host", "new", 25, 0.5),
        ("compute", "aten::add", "same", 0, 0.0),
    ]
    assert rows[0]["because"] == "20 ns → 45 ns per call"
    assert rows[1]["because"].startswith("0 → 1 gaps, host 10 ns → 10 ns, 2 → 2 launches")


def test_what_is_hidden_is_not_blamed() -> None:
    """The reduction takes four times as long, and 5 of its 40 ns are seen: compute runs from 0 to 100."""
    a = timed([(KERNEL | {"name": "gemm"}, 0, 100), (REDUCE, 20, 30)])
    b = timed([(KERNEL | {"name": "gemm"}, 0, 100), (REDUCE, 65, 105)])
    row = told(a, b)["communication", "reduce"]
    assert (row["a_ns"], row["b_ns"], row["delta_ns"], row["share"]) == (0, 5, 5, 1.0)
    assert row["because"] == "10 ns → 40 ns per call, 100% → 88% of it overlapped with other work"


def test_of_two_kernels_at_once_the_first_counts() -> None:
    a = timed([(KERNEL | {"name": "one"}, 0, 10), (KERNEL | {"name": "two", "stream": 8}, 4, 14)])
    b = timed([(KERNEL | {"name": "one"}, 0, 10), (KERNEL | {"name": "two", "stream": 8}, 10, 20)])
    found = told(a, b)
    assert [found["compute", n]["delta_ns"] for n in ("one", "two")] == [0, 6]


def test_an_operator_with_another_kernel_says_which() -> None:
    a = timed([(CALL | {"name": "aten::mm"}, 0, 5), (KERNEL | {"name": "fast", "parent": 0}, 10, 20)])
    b = timed([(CALL | {"name": "aten::mm.out"}, 0, 5), (KERNEL | {"name": "slow", "parent": 0}, 10, 40)])
    row = told(a, b)["compute", "aten::mm"]
    assert row["change"] == "slower"
    assert row["because"] == "kernel `slow` instead of `fast`, 10 ns → 30 ns per call"


def test_the_hosts_side_by_side() -> None:
    a = launched(("aten::mm", 0, 10, 30))
    b = launched(("aten::mm", 0, 10, 30), ("aten::add", 60, 70, 80))
    side = {r["measure"]: (r["a"], r["b"]) for r in host_side(a, b).to_pylist()}
    assert side["host_ns"] == (5, 10)
    assert side["launches"] == (1, 2)
    assert side["launch_delay_ns"] == (5, 10)
    assert side["host_per_launch_ns"] == (5, 5)
    assert side["idle_host_ns"] == (0, 40)


def scattered(seed: int) -> Run:
    rng = random.Random(seed)
    nodes: list[Any] = []
    for i in range(40):
        start = rng.randrange(300)
        kind = rng.choice([KERNEL | {"name": f"k{i % 3}"}, REDUCE, KERNEL | {"name": "Memcpy DtoD"}])
        nodes.append((kind | {"stream": rng.choice([7, 8, 9])}, start, start + rng.choice([0, 1, 5, 30])))
    return timed(nodes, nodes[: rng.randrange(1, 40)])


@pytest.mark.parametrize("seed", range(10))
def test_on_any_runs_the_parts_sum_to_those_of_the_breakdown(seed: int) -> None:
    a, b = scattered(seed), scattered(seed + 100)
    rows = reasons(a, b).to_pylist()
    both = [breakdown(run) for run in (a, b)]
    for part, column in (("compute", "compute_ns"), ("communication", "exposed_comm_ns"),
                         ("memory", "exposed_memory_ns"), ("idle", "idle_ns")):  # fmt: skip
        means = [sum(found[column].to_pylist()) / 2 for found in both]
        assert sum(r["a_ns"] for r in rows if r["part"] == part) == pytest.approx(means[0])
        assert sum(r["delta_ns"] for r in rows if r["part"] == part) == pytest.approx(means[1] - means[0])


def test_one_program_at_two_batch_sizes(shared: Path) -> None:
    """At batch 1 the host is the limit, at batch 96 the device: less waiting for the host, longer products."""
    folder = shared / "traces/h200_pairs"
    a, b = (etude.open_run(folder / f"gpt8_{size}_kineto.json.gz", times=AS_RECORDED) for size in ("b1", "b96"))
    rows = reasons(a, b).to_pylist()
    assert [(r["part"], r["what"], r["delta_ns"] > 0) for r in rows[:2]] == [
        ("idle", "host", False), ("compute", "aten::mm", True)
    ]  # fmt: skip
    spans = [sum(breakdown(run)["span_ns"].to_pylist()) for run in (a, b)]
    assert sum(r["delta_ns"] for r in rows) == pytest.approx(spans[1] - spans[0])
