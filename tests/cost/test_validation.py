"""The model against real hardware: the bars that must hold, on reference rows that were not fitted."""

from pathlib import Path

import fit_devices
import numpy as np
import pytest
import validate_nccl
import validate_ops
import validate_vidur

from etude.cost.calibrate import calibrate
from etude.cost.compute import roofline_ns
from etude.machine import open_device

VIDUR_HEAD = "system,collective,workers,devices_per_node,bytes,median_us,max_rank_us\n"
NCCL_HEAD = "source,gpu,gpus,gpus_per_node,collective,size_bytes,time_us,algbw_GBps,busbw_GBps,note\n"


def test_summaries():
    count, mean, median = validate_ops.summary(np.array([0.1, -0.2, 0.6, np.nan]))
    assert (count, mean, median) == (3, pytest.approx(0.3), pytest.approx(0.2))
    assert validate_nccl.summary(np.array([np.nan]))[0] == 0


def test_nccl_rows_on_tiny_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sizes = [1 << k for k in range(10, 30, 2)]
    lines = [f"here,A100-80GB,8,8,all_reduce,{s},{20 + s / 3e5:.3f},0,0,\n" for s in sizes]
    path, more = tmp_path / "rows.csv", tmp_path / "more.csv"
    path.write_text(NCCL_HEAD + "".join(lines) + "here,A100-80GB,8,8,all_gather,1,1,0,0,\n")
    more.write_text(VIDUR_HEAD + "a100_dgx,send_recv,2,2,2048,9,9\na100_bridge,all_reduce,2,2,8,1,1\n")
    rows = validate_nccl.read([path, more])
    assert len(rows) == len(sizes) + 1  # neither other collectives nor machines that are not in the catalogue
    half = validate_nccl.fitted_half(rows)
    assert 0 < half.sum() < len(rows)
    result = validate_nccl.validate(rows)
    assert (result.fitted == half).all()
    assert np.isfinite(result.errors["refit"]).all()
    validate_nccl.report(result, every=True)
    assert "a100" in capsys.readouterr().out


def test_one_measurement_counts_once_and_a_size_is_in_one_half(tmp_path: Path):
    path, more = tmp_path / "rows.csv", tmp_path / "more.csv"
    path.write_text(
        NCCL_HEAD
        + "microsoft/vidur data/a100_dgx,A100-80GB,8,8,all_reduce,2048,62.0,0,0,\n"
        + "another lab,A100-80GB,8,8,all_reduce,2048,30.0,0,0,\n"
    )
    more.write_text(VIDUR_HEAD + "a100_dgx,all_reduce,8,8,2048,62.0,62.0\na100_dgx,all_reduce,16,8,2048,65.0,65.0\n")
    rows = validate_nccl.read([path, more])
    assert sorted(rows.time_ns.tolist()) == [30e3, 62e3, 65e3]
    for salt in "abcdefgh":
        half = validate_nccl.fitted_half(rows, salt)
        assert half[0] == half[1]  # the same size on as many GPUs, by whomever
        assert not half[2]  # over several nodes: fits nothing


def test_a_row_that_a_larger_message_overtook(tmp_path: Path):
    path = tmp_path / "more.csv"
    times = {1000: 41, 2000: 8, 3000: 9, 4000: 9}
    path.write_text(VIDUR_HEAD + "".join(f"h100_dgx,all_reduce,2,2,{b},{t},{t}\n" for b, t in times.items()))
    assert validate_nccl.overtaken(validate_nccl.read([path])).tolist() == [True, False, False, False]


def test_ops_on_tiny_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "ops.csv"
    rows = [f"copy_bf16,{n},0,{4 * n},{1.5 + 4 * n / 4e6:.4f}\n" for n in (10**6, 10**7, 10**8, 3 * 10**8)]
    path.write_text("op,shape,flops,bytes,microseconds\n" + "".join(rows))
    result = validate_ops.validate(path, open_device("h200"))
    assert np.isfinite(result.errors["refit"]).all()
    validate_ops.report(result, every=True)
    assert "copy" in capsys.readouterr().out


def test_published_times_of_nccl(shared: Path):
    """For every number of GPUs, on rows that were not fitted; the script itself fits again."""
    rows = validate_nccl.read(shared / "measured" / name for name in validate_nccl.FILES)
    result = validate_nccl.validate(rows, fit=False)
    held = validate_nccl.by_gpus(result, "catalogue", rows.big & ~result.fitted)
    for (kind, name, gpus), (count, mean, _) in held.items():
        if kind == "all_reduce" and count:
            assert mean <= 0.12, (name, gpus)
    every = validate_nccl.by_gpus(result, "catalogue", rows.big)
    assert all(mean <= 0.12 for (kind, *_), (count, mean, _) in every.items() if count)


def test_measured_ops_that_were_held_out(shared: Path):
    result = validate_ops.validate(shared / "measured" / "h200_ops.csv", open_device("h200"))
    for model in ("catalogue", "refit"):
        _, mean, median = validate_ops.summary(result.errors[model])
        assert mean <= (0.08 if model == "catalogue" else 0.12)
        assert median <= 0.08


VIDUR_OPS = "device,model,op,tokens,tp,heads,kv_heads,hidden,ffn,vocab,gated,median_us\n"


def test_ops_of_vidur_on_tiny_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Shapes by hand: 64 heads of 128 and 8 pairs of keys and values over 4 ranks, a gated layer of 28,672."""
    path = tmp_path / "ops.csv"
    shape = "4,64,8,8192,28672,32768,True"
    kinds = {"attn_pre_proj": 110, "attn_post_proj": 100.5, "mlp_up_proj": 547, "mlp_down_proj": 280.5, "mlp_act": 22,
             "add": 11, "attn_rope": 7, "emb": 52, "input_layernorm": 19, "attn_kv_cache_save": 3}  # fmt: skip
    lines = [f"a100,one,{op},512,{shape},{us}\n" for op, us in kinds.items()]
    path.write_text(VIDUR_OPS + "".join(lines) + "tpu,one,add,512,4,64,8,8192,28672,32768,True,1\n")
    rows = validate_vidur.read(path)
    assert len(rows.op) == len(kinds) - 1  # neither other ops nor devices that are not in the catalogue
    table = rows.measured.ops
    assert [(int(table.n[i]), int(table.k[i])) for i in range(4)] == [
        (2560, 8192),
        (8192, 2048),
        (14336, 8192),
        (8192, 7168),
    ]
    assert (table.m[:4] == 512).all() and int(table.size_bytes[4]) == 3 * 2 * 512 * 7168
    validate_vidur.report(rows, validate_vidur.errors(rows))
    assert "a100, models held out" in capsys.readouterr().out


def test_ops_of_vidur_of_models_that_were_held_out(shared: Path):
    rows = validate_vidur.read(shared / "measured" / "vidur_ops.csv")
    error = np.abs(validate_vidur.errors(rows))
    held = ~np.isin(rows.model, validate_vidur.FITTED)
    assert np.median(error[held]) <= 0.12
    for device in ("a100", "h100", "a40"):
        assert np.median(error[held & (rows.device == device)]) <= 0.12


def test_products_of_experts_that_were_held_out():
    fitted, held = fit_devices.of_experts()
    assert len(fitted.ops) + len(held.ops) == 210
    _, mean, median = validate_ops.summary(roofline_ns(open_device("h200"), held.ops) / held.time_ns - 1)
    assert mean <= 0.1
    assert median <= 0.08


def test_the_h200_of_the_catalogue_is_what_our_measurements_give():
    """The shipped constants are those of a fit to our own measurements, rounded."""
    measured = fit_devices.our_ops()
    shipped = open_device("h200")
    _, mean, median = validate_ops.summary(roofline_ns(shipped, measured.ops) / measured.time_ns - 1)
    assert mean <= 0.08
    assert median <= 0.05
    fitted = calibrate(fit_devices.bare(shipped), measured)
    for name, cost in fitted.ops.items():
        assert shipped.ops[name].fixed_ns == pytest.approx(cost.fixed_ns, rel=0.02), name
        assert shipped.ops[name].flop_efficiency == pytest.approx(cost.flop_efficiency, rel=0.02), name
        assert shipped.ops[name].memory_efficiency == pytest.approx(cost.memory_efficiency, rel=0.02), name
    assert shipped.cache_speedup == pytest.approx(fitted.cache_speedup, rel=0.02)
    assert shipped.sustained_fraction == pytest.approx(fitted.sustained_fraction, rel=0.02)
