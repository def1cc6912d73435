"""The graph gives the recorded run back, and another run of its program: a sample of benchmarks/fidelity_ingest.py."""

from __future__ import annotations

from pathlib import Path

import fidelity_ingest
import pytest


@pytest.mark.parametrize("run", ["sync", "fsdp.2", "ddp.0", "gpt8_b96"])
def test_dependencies_and_durations_alone_give_the_recorded_span(shared: Path, run: str) -> None:
    found = fidelity_ingest.fidelity(run, fidelity_ingest.captures(shared, public=False)[run])
    assert abs(found["error"]) <= 0.03
    assert abs(found["cut"]) > abs(found["error"]) + 0.02  # the edges between lanes are what makes it so
    assert found["late"] <= 2  # µs


def test_the_graph_of_a_host_bound_run_predicts_a_device_bound_one(shared: Path) -> None:
    folder = shared / "traces/h200_pairs"
    found = fidelity_ingest.causality(folder / "gpt8_b1_kineto.json.gz", folder / "gpt8_b96_kineto.json.gz")
    assert found["recorded_ms"] > 1.5 * found["own_ms"]
    assert abs(found["error"]) <= 0.05
