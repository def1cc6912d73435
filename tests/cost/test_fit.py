import numpy as np
import pytest

from etude.base.errors import FormatError
from etude.cost.calibrate import calibrate, read_measured
from etude.cost.compute import MeasuredOps
from etude.cost.fit import fit, fold_of
from etude.cost.ops import OpTable, copy
from etude.machine.system import Device


def test_a_line_is_found():
    x = np.array([1.0, 2.0, 5.0, 10.0, 100.0])
    found = fit(lambda p: p[0] + p[1] * x, 3 + 0.5 * x, np.array([1.0, 1.0]), np.array([3.0, 3.0]), noise=1e-4)
    assert found == pytest.approx([3, 0.5], rel=0.02)


def test_a_parameter_without_evidence_stays():
    found = fit(lambda p: np.full(4, p[0]), np.full(4, 2.0), np.array([1.0, 7.0]), np.array([2.0, 2.0]))
    assert found[0] == pytest.approx(2, rel=0.1)
    assert found[1] == pytest.approx(7, rel=0.05)


def test_outliers_do_not_pull():
    measured = np.array([10.0, 10.0, 10.0, 10.0, 900.0, 900.0])
    found = fit(lambda p: np.full(6, p[0]), measured, np.array([12.0]), np.array([2.0]), outlier=2.0)
    assert found[0] == pytest.approx(10, rel=0.05)


def test_folds_depend_on_the_row_alone():
    assert fold_of(["a", "b", "c"], 5).tolist() == fold_of(["c", "b", "a"], 5).tolist()[::-1]
    assert set(fold_of([str(i) for i in range(200)], 5).tolist()) == {0, 1, 2, 3, 4}


def test_constants_of_a_device_come_back():
    sizes = [1000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000]
    device = Device(name="toy", peak_flop_per_s={"fp32": 1e13}, memory_bandwidth_bytes_per_s=1e12)
    true_ns = np.array([2000 + 4 * n / 1000 / 0.87 for n in sizes])
    found = calibrate(device, MeasuredOps(OpTable.of([copy(n) for n in sizes]), true_ns.round().astype(np.int64)))
    assert found.ops["copy"].fixed_ns == pytest.approx(2000, rel=0.05)
    assert found.ops["copy"].memory_efficiency == pytest.approx(0.87, rel=0.02)
    assert "gemm" not in found.ops


def test_a_bad_table_says_where(tmp_path):
    path = tmp_path / "ops.csv"
    path.write_text("op,shape,flops,bytes,microseconds\ncopy_bf16,12,0,48,1.5\ncopy_bf16,12,0,48,fast\n")
    with pytest.raises(FormatError, match="ops.csv: line 3"):
        read_measured(path)
