"""The device times of one recording on the graph of another, at the speed of its host."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fidelity_ingest
import numpy as np
import pytest

from etude.base.errors import MismatchError
from etude.capture.ingest import causal
from etude.make.transform import with_device_times
from etude.model.job import Job
from etude.surface.cli import main
from recorded import device_json, event, kernel, launch, op, read_device_json

LAYERS = 40
Events = list[dict[str, Any]]


def program(
    host_us: float, device_us: float, *, stopped: float = 0, layers: int = LAYERS, first_step: int = 0
) -> Events:
    """Two steps of `layers` operators, each of which works for `host_us`, launches a kernel and works on; the step then
    waits for the device. `stopped`: how much longer one of the operators took, for no reason of its own."""
    events: Events = []
    at, correlation, free = 0.0, 0, 0.0
    for step in range(2):
        begin = at
        for layer in range(layers):
            correlation += 1
            extra = stopped if (step, layer) == (0, 7) else 0
            events += [op("aten::mm", at, 2 * host_us + 1 + extra, correlation), launch(at + host_us, correlation)]
            free = max(free, at + host_us + 2) + device_us
            events.append(kernel("gemm", free - device_us, device_us, correlation, correlation))
            at += 2 * host_us + 1 + extra
        end = max(at, free) + 5
        events += [event("cuda_runtime", "cudaDeviceSynchronize", at, end - at, correlation=10_000 + step),
                   event("user_annotation", f"ProfilerStep#{first_step + step}", begin, end - begin)]  # fmt: skip
        at = end
    return events


def job(*args: float, **more: Any) -> Job:
    return causal.to_job("run", [causal.convert(read_device_json(device_json(*program(*args, **more))))])


def span_us(found: Job) -> float:
    return fidelity_ingest.run(found).makespan_ns / 1000


def test_one_recording_predicts_the_other() -> None:
    """One is limited by its host, 21 µs an operator, the other by its device, 60 µs: and its host is twice as slow."""
    one, two = job(10, 5), job(20, 60)
    found = with_device_times(one, two)
    assert found.host_factor == pytest.approx(2, rel=0.01)
    assert (found.placed, found.shared) == (1, pytest.approx(1, abs=0.01))
    assert span_us(found.job) == pytest.approx(fidelity_ingest.recorded_span_ns(two) / 1000, rel=0.01)
    assert span_us(with_device_times(two, one).job) == pytest.approx(
        fidelity_ingest.recorded_span_ns(one) / 1000, rel=0.03
    )
    assert span_us(with_device_times(two, one, 1.0).job) > 1.8 * fidelity_ingest.recorded_span_ns(one) / 1000


def test_a_host_that_was_stopped_once_is_no_slower() -> None:
    one, two = job(10, 5), job(20, 5, stopped=3000)
    assert with_device_times(one, two).host_factor == pytest.approx(2, rel=0.08)


def test_a_host_that_waits_for_its_device_is_no_slower() -> None:
    one, two = job(10, 5), job(10, 500)
    assert with_device_times(one, two).host_factor == pytest.approx(1, rel=0.001)


def test_a_factor_may_be_given_and_steps_have_other_numbers() -> None:
    one, two = job(10, 5), job(20, 60, first_step=40)
    assert with_device_times(one, two).host_factor == pytest.approx(2, rel=0.01)
    given = with_device_times(one, two, 0.5)
    host = one.traces[0].cpu == 1
    total = [int(t.duration_ns[host].sum()) for t in (one.traces[0], given.job.traces[0])]
    assert given.host_factor == 0.5
    assert total[1] == pytest.approx(total[0] / 2, rel=0.05)


def test_recordings_of_two_programs_are_refused() -> None:
    with pytest.raises(MismatchError, match="too few to compare their hosts"):
        with_device_times(job(10, 5), job(10, 5, layers=LAYERS + 8))
    alone = causal.to_job(
        "run", [causal.convert(read_device_json(device_json(*[op("aten::mm", 10 * i, 9, i + 1) for i in range(99)])))]
    )
    with pytest.raises(MismatchError, match="no operator uses the device in both"):
        with_device_times(alone, alone)


def test_the_command_says_the_factor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file, events in zip(files, (program(10, 5), program(20, 60)), strict=True):
        file.write_text(json.dumps(device_json(*events)))
    command = ["simulate", str(files[0]), "--system", "dgx-h100", "--device-times-of", str(files[1])]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "host times are multiplied by 2.0" in found["notes"][1]
    assert found["makespan_ns"] / 1000 == pytest.approx(2 * LAYERS * 60, rel=0.02)
    assert main([*command, "--host-speed", "1", "--json"]) == 0
    assert "multiplied by 1.000, as given" in json.loads(capsys.readouterr().out)["notes"][1]
    assert main([*command, "--host-speed", "fast"]) == 2
    assert main([*command[:4], "--host-speed", "2"]) == 2


@pytest.mark.parametrize(("one", "two", "within"), [
    ("traces/h200_pairs/gpt8_b96", "traces/h200_pairs/gpt8_b1", 0.05),  # +9.7% at the speed of its own host
    ("traces/h200_pairs/gpt8_b1", "traces/h200_pairs/gpt8_b96", 0.01),
    ("measured/replay/gpt_m_b8", "measured/replay/gpt_m_b4_t2048", 0.01),  # +15.3%
    ("measured/replay/gpt_m_b4_t2048", "measured/replay/gpt_m_b8", 0.01),  # -13.3%
])  # fmt: skip
def test_measured_pairs(shared: Path, one: str, two: str, within: float) -> None:
    found = fidelity_ingest.causality(*(shared / f"{name}_kineto.json.gz" for name in (one, two)))
    assert abs(found["error"]) <= within
    assert np.isfinite(found["host_factor"])
