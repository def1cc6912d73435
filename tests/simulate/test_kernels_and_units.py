"""Other kernels and units in a simulation: what they make of each node, and what says nothing stays as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.base.errors import ClusterError, UsageError
from etude.machine import open_system
from etude.make.generate import Plan, generate
from etude.make.generate.model import open_model
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Kind
from etude.run.simulate.run import simulate
from etude.surface.cli import main

H200 = open_system("h200")
BF16 = "['Tensor(c10::BFloat16)', 'Tensor(c10::BFloat16)']"


def job(*shapes: tuple[int, int, int], duration_ns: int | None = None, cpu: int = 0) -> Job:
    b = TraceBuilder()
    for m, k, n in shapes:
        known = {} if duration_ns is None else {"duration_ns": duration_ns}
        b.add(Kind.COMP, "aten::mm", in_types=BF16, in_shapes=f"[[{m}, {k}], [{k}, {n}]]", cpu=cpu, **known)
    return job_of("w", [b])


def times(found: Any) -> list[int]:
    start, end = found.timing.block(0)
    return (end - start).tolist()


def test_named_kernels_pay_where_bytes_are_the_limit():
    given = job((1, 8192, 8192), (8192, 8192, 8192))
    plain, narrow = times(simulate(given, H200)), times(simulate(given, H200, kernels=["product:w4a16:g128"]))
    assert 2 < plain[0] / narrow[0] < 16 / 4.125  # a fixed time is in both
    assert narrow[1] == pytest.approx(plain[1], rel=0.01)


def test_recorded_times_are_scaled_and_hosts_are_not():
    narrow = {"kernels": ["product:w4a16:g128"]}
    ratio = np.divide(*(times(simulate(job((1, 8192, 8192)), H200, **options))[0] for options in (narrow, {})))
    recorded = times(simulate(job((1, 8192, 8192), duration_ns=10**9), H200, **narrow))[0]
    assert recorded == pytest.approx(ratio * 1e9, rel=1e-3)
    assert times(simulate(job((1, 8192, 8192), duration_ns=10**9, cpu=1), H200, **narrow)) == [10**9]


def test_auto_takes_the_fastest_node_by_node_and_says_so():
    given = job((1, 8192, 8192), (8192, 8192, 8192), (333, 77, 1000))
    plain, auto = simulate(given, H200), simulate(given, H200, kernels=["auto", "product:w8a8:g16"])
    forced = times(simulate(given, H200, kernels=["product:w8a8:g16"]))
    assert times(auto) == np.minimum(times(plain), forced).tolist()
    assert forced[1] > times(plain)[1]  # partial sums of groups of 16 take the vector units longer than all the rest
    assert any("product:w8a8:g16" in note for note in auto.notes)


def test_one_unit_is_as_before_node_by_node():
    made = generate(open_model("gpt2"), Plan(gpus=2, tp=2, global_batch=2, seq=128)).job
    on = open_system("dgx-h100").for_ranks(2)
    one = on.replace(device=replace(on.device, units={"gpu": on.device.peak_flop_per_s}))
    before = simulate(made, on)
    for units in ("", "auto", "gpu"):
        after = simulate(made, one, units=units)
        for rank in (0, 1):
            assert all((a == b).all() for a, b in zip(after.timing.block(rank), before.timing.block(rank), strict=True))


def test_what_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ClusterError, match="has no unit `dpu`"):
        simulate(job((64, 64, 64)), H200, units="dpu")
    with pytest.raises(UsageError, match="unknown kernel"):
        simulate(job((64, 64, 64)), H200, kernels=["gemm:fast"])
    assert main(["predict", "--rows", "x.csv", "--kernel", "auto"]) == 2
    assert "--kernel is not read by `etude predict rows`" in capsys.readouterr().err


def test_units_of_a_phone_help_the_prompt_and_not_the_tokens(capsys: pytest.CaptureFixture[str]):
    import json

    found = {}
    for units in ("cpu", "sme", "auto"):
        serve = ["--serve", "--prefill", "128", "--decode", "2", "--system", "phone-sme", "--json", "--units", units]
        assert main(["predict", "gpt2", *serve]) == 0
        found[units] = json.loads(capsys.readouterr().out)
    first, further = ({u: found[u][name]["mean"] for u in found} for name in ("ttft_ns", "tpot_ns"))
    assert first["auto"] < first["sme"] < first["cpu"] / 2
    assert further["auto"] <= further["sme"] == pytest.approx(further["cpu"], rel=0.05)
