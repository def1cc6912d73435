"""Times that PyTorch's operators take by name, for a job that has none."""

import json

import numpy as np
import pytest

from etude.cost.framework import FrameworkOperator, FrameworkOperators, open_framework
from etude.machine.system import Device
from etude.make.transform import with_framework_times
from etude.make.transform.recorded_operators import formula_ns
from etude.model.build import TraceBuilder
from etude.model.job import Job, assemble
from etude.model.schema import Kind

DEVICE = Device(name="d", peak_flop_per_s={"fp32": 1e18}, memory_bandwidth_bytes_per_s=1e12)
TABLE = FrameworkOperators(
    {
        "*": FrameworkOperator(7_000, 3_000, 0, 1.0, 0),
        "aten::mul": FrameworkOperator(2_000, 1_000, 500, 2.0, 3),
        "aten::_foreach_add_": FrameworkOperator(400, 100, 0, 1.0, 3),
        "aten::convolution": FrameworkOperator(1, 1, 0, 1.0, 1),
        "aten::convolution by channel": FrameworkOperator(2, 2, 0, 1.0, 1),
    }
)


def job(*operators: tuple[str, list[list[int]]]) -> Job:
    made = TraceBuilder()
    for name, shapes in operators:
        types = json.dumps(["Tensor(float)"] * len(shapes))
        given = shapes if not name.startswith("aten::_foreach") else [shapes]
        made.add(Kind.COMP, name, cpu=0, stream=0, step=0, in_shapes=json.dumps(given), in_types=types)
    return assemble("dry", [made.part(rank=0)])


def times(found: Job) -> list[tuple[str, int]]:
    trace = found.traces[0]
    return [(trace.text("name", i), int(trace.duration_ns[i])) for i in range(len(trace))]


def test_the_host_by_name_and_the_device_beyond_its_formula() -> None:
    """Three tensors of 4 MB at 90% of 1 TB/s and 2 us to start are 15.33 us: twice that and 0.5 us."""
    found = with_framework_times(job(("aten::mul", [[1000, 1000], [1000, 1000]])), TABLE, DEVICE)
    assert times(found.job) == [("host", 3_000), ("aten::mul", pytest.approx(31_167, abs=2))]
    assert found.strange == () and found.calls == 0.0


def test_an_operator_in_place_is_one_of_that_name() -> None:
    found = with_framework_times(job(("aten::_foreach_add", [[8], [8], [8]])), TABLE, DEVICE)
    assert times(found.job)[0] == ("host", 3 * 500) and found.strange == ()


def test_an_optimizer_looks_at_its_weights_once() -> None:
    """Python over all weights comes before the first operator on their lists, not before each."""
    others = {
        f"aten::_foreach_{name}": FrameworkOperator(ns, 100, 0, 1.0, 3) for name, ns in (("mul_", 60), ("sqrt", 40))
    }
    table = FrameworkOperators({**TABLE.rows, **others})
    lists = [("aten::_foreach_add_", [[8], [8], [8]])] * 3
    hosts = [took for name, took in times(with_framework_times(job(*lists), table, DEVICE).job) if name == "host"]
    assert hosts == [3 * 500, 3 * 160, 3 * 160]  # 60 ns is the median of the three rows


def test_what_was_not_recorded_is_named() -> None:
    found = with_framework_times(job(("aten::exp", [[1000]]), ("aten::mul", [[10], [10]])), TABLE, DEVICE)
    assert times(found.job)[0] == ("host", 10_000)
    assert found.strange == ("aten::exp",) and found.calls == 0.5


def test_a_stated_host_takes_as_long_for_each() -> None:
    found = with_framework_times(job(("aten::mul", [[10], [10]])), TABLE, DEVICE, host_ns=44)
    assert times(found.job)[0] == ("host", 44)


def test_convolutions_that_do_not_run_on_matrix_units_have_their_own_row() -> None:
    dense, by_channel = [[8, 64, 9, 9], [64, 64, 3, 3]], [[8, 64, 9, 9], [64, 1, 3, 3]]
    assert TABLE.of("aten::convolution", dense) == TABLE.rows["aten::convolution"]
    assert TABLE.of("aten::convolution", by_channel) == TABLE.rows["aten::convolution by channel"]
    assert TABLE.of("aten::convolution_backward", dense) is None
    volumes = {**TABLE.rows, "aten::convolution of volumes": FrameworkOperator(3, 3, 0, 1.0, 1)}
    of_volumes = FrameworkOperators(volumes).of("aten::convolution", [[8, 64, 9, 9, 9], [64, 64, 3, 3, 3]])
    assert of_volumes == volumes["aten::convolution of volumes"]


def test_convolutions_of_32_bits_run_in_tf32_where_the_device_has_it() -> None:
    """2 * 8 * 64 * 64 * 9 * 7 * 7 = 28.9 GFLOP: eight times as long in fp32 as in TF32 of eight times the rate."""
    made = TraceBuilder()
    shapes = json.dumps([[8, 64, 9, 9], [64, 64, 3, 3], *[[]] * 7])
    types = json.dumps(["Tensor(float)", "Tensor(float)", "None", *["GenericList[Int,Int]"] * 3, "Bool", "", "Int"])
    values = json.dumps(["", "", "", [1, 1], [0, 0], [1, 1], False, [0, 0], 1])
    more = {"in_shapes": shapes, "in_types": types, "in_values": values}
    made.add(Kind.COMP, "aten::convolution", cpu=0, stream=0, step=0, **more)
    trace = assemble("dry", [made.part(rank=0)]).traces[0]

    def taken(**rates: float) -> float:
        device = Device(name="d", peak_flop_per_s=rates, memory_bandwidth_bytes_per_s=1e15)
        return float(formula_ns(trace, np.arange(1), device)[0])

    assert taken(fp32=1e10) / taken(fp32=1e10, tf32=8e10) == pytest.approx(8, rel=0.01)


def test_the_table_that_is_shipped_is_whole() -> None:
    table = open_framework()
    assert all(min(row[:4]) >= 0 for row in table.rows.values()) and table.any.factor > 0
    assert {"aten::mm", "aten::mul", "aten::convolution by channel"} <= set(table.rows)
    assert sum(row.programs >= 3 for row in table.rows.values()) >= 60
