"""Energy of predictions: clocks, caps, rows of measurements, the command."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from etude.analyse.energy import energy
from etude.base.errors import FormatError, UsageError
from etude.machine import open_device, open_system
from etude.machine.power import PowerCosts
from etude.machine.system import Device, OpCost
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.make.generate.serving import Serving, serve
from etude.model.build import TraceBuilder, job_of
from etude.model.schema import Kind
from etude.run.simulate import simulate
from etude.steps import predict_serving
from etude.steps.energy import energy_rows, ratio_of, slowed, under_cap
from etude.surface.cli import main
from toy_systems import one_level

SYSTEM = open_system("dgx-h200")


@pytest.fixture(scope="module")
def decode():
    """A pass of a small batch: bound by the memory."""
    return serve(open_model("llama3.2-1b"), Plan(gpus=1), Serving(prefill=1, decode=4, batch=1))


def at(job, ratio):
    run = predict_serving(replace(job, job=slowed(job.job, SYSTEM.device, ratio)), SYSTEM, compute="recorded").simulated
    return run, energy(run, device=SYSTEM.device, ratio=ratio)


def test_only_compute_bound_work_takes_longer_at_a_lower_clock():
    exact = OpCost(fixed_ns=0.0, flop_efficiency=1.0, memory_efficiency=1.0)
    costs = PowerCosts(active_w=20.0, flop_pj={"bf16": 1.0}, byte_pj=1.0)
    device = Device(
        name="toy", peak_flop_per_s={"bf16": 1e12}, memory_bandwidth_bytes_per_s=1e9, ops={"default": exact},
        power_w=200.0, idle_power_w=10.0, energy=costs,
    )  # fmt: skip
    b = TraceBuilder()
    b.add(Kind.COMP, "memory", cpu=0, flops=10**6, tensor_bytes=10**4)  # 1 us of operations, 10 us of bytes
    b.add(Kind.COMP, "compute", cpu=0, flops=10**7, tensor_bytes=10**3, data=[0])  # 10 us, 1 us
    job = job_of("j", [b], {})
    assert slowed(job, device, 1.0) is job
    assert slowed(job, device, 0.5).traces[0].duration_ns.tolist() == [10_000, 20_000]
    system = one_level("switch", 1).replace(device=device)
    runs = {ratio: simulate(slowed(job, device, ratio), system) for ratio in (1.0, 0.5)}
    parts = {ratio: energy(run, ratio=ratio).curve.watts.tolist() for ratio, run in runs.items()}
    # 1e6 FLOPs at 1 pJ in 10 us are 0.1 W; half the clock is 0.5^2.5 of the power, and twice as much of it for a FLOP.
    assert parts[1.0] == pytest.approx([10 + 20 + 0.1 + 1e-3, 10 + 20 + 1 + 1e-4])
    assert parts[0.5] == pytest.approx([10 + (20 + 0.2) * 0.5**2.5 + 1e-3, 10 + (20 + 1) * 0.5**2.5 + 5e-5])


def test_a_cap_above_the_peak_changes_nothing(decode):
    timing = predict_serving(decode, SYSTEM).simulated.timing
    calls = []

    def run_at(ratio):
        run, found = at(decode, ratio)
        calls.append((ratio, run.timing))
        return found

    found = under_cap(run_at, 5000.0, SYSTEM.device)
    assert (found.ratio, found.met, len(calls)) == (1.0, True, 1)
    assert all(np.array_equal(a, b) for a, b in zip(calls[0][1].end_ns, timing.end_ns, strict=True))


def test_a_cap_takes_the_highest_clock_that_keeps_to_it():
    job = serve(open_model("llama3.2-1b"), Plan(gpus=1), Serving(prefill=4096, batch=2))
    found = under_cap(lambda ratio: at(job, ratio)[1], 500.0, SYSTEM.device)
    assert found.met
    assert found.energy.highest_w <= 500 < at(job, found.ratio + 0.01)[1].highest_w
    with pytest.raises(UsageError, match="not above the idle power"):
        under_cap(lambda ratio: at(job, ratio)[1], 80.0, SYSTEM.device)


def test_clocks_as_text():
    device = open_device("h200")
    assert ratio_of("990MHz", device) == ratio_of("0.99GHz", device) == ratio_of("0.5", device) == 0.5
    for wrong in ("fast", "3GHz", "1.1", "0"):
        with pytest.raises(UsageError):
            ratio_of(wrong, device)


CASES = [
    ("gemm_bf16_8192", "gemm_bf16", "8192x8192x8192", 692, 1.15),
    ("copy_256MiB", "copy", "", 690, 0.087),
    ("copy_256MiB_duty50", "copy", "20 ms bursts", 380, 0.097),
    ("gemm_bf16_m16_8192", "gemm_bf16", "16x8192x8192", 671, 0.0229),
    ("llama8b_decode_b1", "decode", "batch 1 context 1024", 508, 2.56),
]
"""Of an energy counter: W and J of a call."""


def test_cases_of_an_energy_counter(tmp_path):
    path = tmp_path / "energy.csv"
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["name", "kind", "detail", "duty", "mean_w", "energy_j_per_call"])
        out.writerows([n, k, d, 0.5 if "duty" in n else 1, w, j] for n, k, d, w, j in CASES)
        out.writerow(["gemm_bf16_8192_zeros", "gemm_bf16", "8192 zeros", 1, 420, 0.59])
        out.writerow(["x", "dance", "", 1, 1, 1])
    found = energy_rows(path)
    for record in found[:-2]:
        for figure, measured in record["measured"].items():
            assert record["predicted"][figure] == pytest.approx(measured, rel=0.12), (record["name"], figure)
    assert "values of data" in found[-2]["refused"]
    assert "cannot be read" in found[-1]["refused"]
    path.write_text("a,b\n1,2\n")
    with pytest.raises(FormatError, match="columns"):
        energy_rows(path)


def test_served_rows_are_predicted_from_their_shape_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    head = "model,task,weight_precision,gpu,num_gpus,tp,dp,ep,avg_power_watts,avg_batch_size,avg_output_len"
    rows = ["meta-llama/Llama-3.1-8B-Instruct,lm-arena-chat,bfloat16,H100,1,1,1,1,610,64,395",
            "meta-llama/Llama-3.1-8B-Instruct,lm-arena-chat,bfloat16,H100,1,1,1,1,1,64,395",
            "meta-llama/Llama-3.1-8B-Instruct,dance,bfloat16,H100,1,1,1,1,1,64,395"]  # fmt: skip
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    assert main(["energy", "--rows", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["rows"]
    assert found[0]["predicted"] == found[1]["predicted"]  # what was measured is not read
    assert found[0]["predicted"]["mean_w"] == pytest.approx(610, rel=0.25)
    assert found[0]["measured"] == {"mean_w": 610.0}
    assert 4.8 < found[0]["predicted"]["pass_ms"] < 15  # 16.06 GB of weights at 3.35 TB/s are 4.8 ms
    assert "unknown task" in found[2]["refused"]
    assert main(["energy", "--rows", str(path), "--system", "dgx-h200"]) == 2


KEYS = {"energy_j", "mean_w", "peak_w", "by_class", "per_step_j", "per_token_j", "carbon_g", "cost"}


def test_the_command(tmp_path, capsys):
    power = tmp_path / "p.parquet"
    serving = ["llama3.2-1b", "--serve", "--prefill", "64", "--decode", "4", "--batch", "2", "--system", "dgx-h200"]
    assert main(["energy", *serving, "--region", "sweden", "--timeline", str(power), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= KEYS
    assert found["per_token_j"] == pytest.approx(found["energy_j"] / 10)
    assert sum(found["by_class"].values()) == pytest.approx(found["energy_j"])
    assert found["mean_w"] * found["time_ns"] / 1e9 == pytest.approx(found["energy_j"])
    table = pq.read_table(power)
    assert table.schema.names == ["time_ns", "watts"]
    assert table["time_ns"].to_numpy()[-1] == found["time_ns"]
    lengths = np.diff(table["time_ns"].to_numpy())
    assert (table["watts"].to_numpy()[:-1] * lengths).sum() / 1e9 == pytest.approx(found["energy_j"])
    half = found["high"]["energy_j"] / found["energy_j"]
    assert half > 1 and "held-out rows" in found["basis"]["energy_j"]["text"]
    for figure in ("per_token_j", "carbon_g", "mean_w"):  # carbon and watts follow the joules
        assert found["high"][figure] == pytest.approx(found[figure] * half)
    assert main(["energy", *serving, "--timeline", str(power)]) == 2  # it is there
    assert main(["energy", *serving, "--smooth", "magic"]) == 2
    assert main(["energy", *serving, "--clock", "1GHz", "--cap", "500W"]) == 2
    assert main(["energy", *serving, "--every", "1ms"]) == 2
    assert main(["energy", *serving, "--regions", str(tmp_path / "none.csv")]) == 2
    assert main(["energy"]) == 2


def test_the_command_takes_the_file_of_a_model(tmp_path, capsys):
    (tmp_path / "two.yaml").write_text("{name: two, layers: 2, hidden: 256, heads: 4, ffn: 512, vocab: 128, seq: 64}\n")
    asked = ["--serve", "--prefill", "16", "--decode", "2", "--system", "dgx-h200", "--json"]
    assert main(["energy", str(tmp_path / "two.yaml"), *asked]) == 0
    assert json.loads(capsys.readouterr().out)["energy_j"] > 0


def test_the_command_on_a_job_of_a_step(tmp_path, capsys):
    assert main(["generate", "gpt2", "--gpus", "2", "--seq", "128", "-o", str(tmp_path / "job")]) == 0
    assert main(["energy", str(tmp_path / "job"), "--system", "dgx-h200", "--json"]) == 0
    of_run = json.loads(capsys.readouterr().out.partition("{")[2].join(["{", ""]))
    assert of_run["energy_j"] > 0
    assert of_run["low"]["energy_j"] is None  # of training steps one row was measured
    assert of_run["basis"]["energy_j"]["text"].startswith("no evidence for the energy")
    assert main(["energy", str(tmp_path / "job"), "--system", "dgx-h200", "--clock", "0.5", "--json"]) == 0
    slow = json.loads(capsys.readouterr().out)
    assert slow["validated"] is True  # clocks of an H200 were measured
    assert slow["time_ns"] >= of_run["time_ns"]
    assert main(["energy", str(tmp_path / "job"), "--tp", "2", "--device", "h200"]) == 2
