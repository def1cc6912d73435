"""The model against real hardware: the bars that must hold, on reference rows that were not fitted."""

from pathlib import Path

import numpy as np
import pytest
import validate_nccl
import validate_ops

from etude.cost.calibrate import calibrate, read_measured
from etude.cost.compute import roofline_ns
from etude.machine import open_device

HERE = Path(__file__).resolve().parents[2]
NCCL_HEAD = "source,gpu,gpus,gpus_per_node,collective,size_bytes,time_us,algbw_GBps,busbw_GBps,note\n"


def test_summaries():
    count, mean, median = validate_ops.summary(np.array([0.1, -0.2, 0.6, np.nan]))
    assert (count, mean, median) == (3, pytest.approx(0.3), pytest.approx(0.2))
    assert validate_nccl.summary(np.array([np.nan]))[0] == 0


def test_all_reduce_rows_on_tiny_data(tmp_path: Path):
    sizes = [1 << k for k in range(10, 30, 2)]
    lines = [f"here,H100-80GB,8,8,all_reduce,{s},{20 + s / 3e5:.3f},0,0,\n" for s in sizes]
    path = tmp_path / "rows.csv"
    path.write_text(NCCL_HEAD + "".join(lines) + "here,H100-80GB,8,8,all_gather,1,1,0,0,\n")
    rows = validate_nccl.read(path)
    assert len(rows) == len(sizes)
    half = validate_nccl.fitted_half(rows, np.ones(len(rows), bool))
    assert half.sum() == len(sizes) // 2
    assert (validate_nccl.fitted_half(rows, np.ones(len(rows), bool)) == half).all()
    result = validate_nccl.validate(rows)
    assert (result.fitted == half).all()
    assert np.isfinite(result.errors["refit"]).all()
    validate_nccl.report(result, every=True)


def test_ops_on_tiny_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "ops.csv"
    rows = [f"copy_bf16,{n},0,{4 * n},{1.5 + 4 * n / 4e6:.4f}\n" for n in (10**6, 10**7, 10**8, 3 * 10**8)]
    path.write_text("op,shape,flops,bytes,microseconds\n" + "".join(rows))
    result = validate_ops.validate(path, open_device("h200"))
    assert np.isfinite(result.errors["refit"]).all()
    validate_ops.report(result, every=True)
    assert "copy" in capsys.readouterr().out


def test_published_all_reduce_times(shared: Path):
    result = validate_nccl.validate(validate_nccl.read(shared / "measured" / "nccl_allreduce.csv"))
    for constants in ("catalogue", "refit"):
        big, small = validate_nccl.bars(result, constants)
        assert big <= 0.12
        assert small <= 0.30
    held = result.single & ~result.fitted & (result.rows.size_bytes >= validate_nccl.BIG_BYTES)
    assert validate_nccl.summary(result.errors["refit"][held])[1] <= 0.12
    held = result.single & ~result.fitted & (result.rows.size_bytes < validate_nccl.BIG_BYTES)
    assert validate_nccl.summary(result.errors["refit"][held])[2] <= 0.30


def test_measured_ops_that_were_held_out(shared: Path):
    result = validate_ops.validate(shared / "measured" / "h200_ops.csv", open_device("h200"))
    for model in ("catalogue", "refit"):
        _, mean, median = validate_ops.summary(result.errors[model])
        assert mean <= 0.15
        assert median <= 0.08


def test_the_h200_of_the_catalogue_is_what_the_grid_gives():
    """The shipped constants are those of a fit to our own measurements, rounded."""
    _, measured = read_measured(HERE / "benchmarks" / "h200_ops_grid.csv")
    shipped = open_device("h200")
    _, mean, median = validate_ops.summary(roofline_ns(shipped, measured.ops) / measured.time_ns - 1)
    assert mean <= 0.08
    assert median <= 0.05
    from dataclasses import replace

    bare = replace(shipped, ops={}, cache_speedup=1.0, sustained_fraction=1.0, sustained_after_ns=200_000.0)
    fitted = calibrate(bare, measured)
    for name, cost in fitted.ops.items():
        assert shipped.ops[name].fixed_ns == pytest.approx(cost.fixed_ns, rel=0.02), name
        assert shipped.ops[name].flop_efficiency == pytest.approx(cost.flop_efficiency, rel=0.02), name
        assert shipped.ops[name].memory_efficiency == pytest.approx(cost.memory_efficiency, rel=0.02), name
    assert shipped.cache_speedup == pytest.approx(fitted.cache_speedup, rel=0.02)
    assert shipped.sustained_fraction == pytest.approx(fitted.sustained_fraction, rel=0.02)
