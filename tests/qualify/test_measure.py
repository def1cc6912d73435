"""The micro jobs run on a CPU, and what they measure is what was done."""

import pytest

from etude.base.errors import UsageError
from etude.run.qualify import MeasureOptions, measure_node
from later import TORCH, later

torch = later("torch", TORCH)
QUICK = MeasureOptions(repetitions=3, seconds=0.002, side=64, copy_bytes=1 << 20)


def test_a_cpu_has_figures_of_host_and_device():
    if torch.cuda.is_available():
        pytest.skip("this machine has GPUs")
    figures, about = measure_node(QUICK)
    assert [(f.name, f.part, f.device) for f in figures] == [
        ("interpreter", "host", ""), ("operator dispatch", "host", ""), ("share of a CPU", "host", ""),
        ("gemm float32 64", "device", "cpu"), ("memory 1 MiB", "device", "cpu"),
    ]  # fmt: skip
    assert all(f.value > 0 and f.spread >= 0 for f in figures) and figures[2].value <= 1
    assert about["devices"] == ["cpu"] and about["torch"] == torch.__version__


def test_options_that_measure_nothing_are_refused():
    with pytest.raises(UsageError, match="1 repetitions"):
        measure_node(MeasureOptions(repetitions=1))
