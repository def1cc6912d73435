"""Recurrent networks of a dry run: one operator of cuDNN, and what it keeps."""

import sys
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.capture.dry.cuda_recurrent import MODES, kept_bytes, scratch_bytes
from etude.surface.cli import main

# What cuDNN asked for on an H200 (`benchmarks/measure_recurrent.py`): kind, length, batch, state, layers, directions,
# whether there is dropout, bytes of a number, bytes kept.
MEASURED = [
    ("rnn_relu", 300, 8, 1024, 1, 1, False, 4, 9_830_656),
    ("rnn_tanh", 300, 8, 1024, 3, 2, True, 4, 100_761_856),
    ("lstm", 64, 32, 1024, 2, 1, False, 4, 92_274_944),
    ("lstm", 64, 32, 1024, 2, 1, True, 2, 46_399_744),
    ("lstm", 128, 64, 512, 3, 2, True, 4, 574_619_904),
    ("gru", 300, 8, 1024, 2, 1, True, 4, 128_102_656),
    ("gru", 50, 16, 256, 1, 2, False, 2, 4_915_456),
]


@pytest.mark.parametrize("row", MEASURED)
def test_a_forward_pass_keeps_what_cudnn_asked_for(row: tuple[str, int, int, int, int, int, bool, int, int]) -> None:
    kind, length, batch, state, layers, directions, dropout, size, measured = row
    shape = {"layers": layers, "directions": directions, "dropout": dropout, "element_size": size}
    assert kept_bytes(MODES[kind], length * batch * state, **shape) == measured


def test_sizes_that_are_no_multiple_are_close() -> None:
    """cuDNN fills masks up; 120 bytes of 5 million are not counted."""
    found = kept_bytes(MODES["lstm"], 37 * 5 * 200, layers=3, directions=2, dropout=True, element_size=4)
    assert 5_069_376 - found == 120


# What a forward pass rose by beyond its results and what it keeps: kind, length, batch, width that it reads, width of
# its state, layers, directions, whether there is dropout, bytes of a number, bytes.
ROSE = [
    ("lstm", 64, 32, 512, 1024, 2, 1, True, 4, 132_645_632),
    ("lstm", 300, 8, 1024, 1024, 1, 2, False, 4, 232_129_280),
    ("lstm", 128, 64, 128, 512, 1, 1, False, 4, 103_023_872),
    ("gru", 64, 32, 512, 1024, 3, 2, True, 2, 201_982_720),
    ("gru", 300, 8, 1024, 1024, 2, 1, False, 4, 118_162_176),
    ("rnn_relu", 64, 32, 512, 1024, 2, 1, False, 4, 68_420_352),
]


@pytest.mark.parametrize("row", ROSE)
def test_a_pass_works_with_about_what_cudnn_took(
    row: tuple[str, int, int, int, int, int, int, bool, int, int],
) -> None:
    """The numbers are medians of many shapes; cuDNN chooses its ways by shape."""
    kind, length, batch, width, state, layers, directions, dropout, size, measured = row
    gates = {"lstm": 4, "gru": 3}.get(kind, 1)
    read = [width] + [state * directions] * (layers - 1)
    weights = sum(gates * state * (one + state + 2) * directions for one in read)
    shape = {"layers": layers, "directions": directions, "dropout": dropout, "element_size": size}
    assert scratch_bytes(MODES[kind], length * batch * state, weights, **shape) == pytest.approx(measured, rel=0.1)


def test_layers_and_times_are_one_operator(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = Path(__file__).parent / "programs" / "dry_words.py"
    out = tmp_path / "job"
    assert main(["collect", "--dry", "--device", "h100", "-o", str(out), "--", sys.executable, str(program)]) == 0
    trace = etude.open(out).traces[0]
    names = [trace.text("name", i) for i in range(len(trace))]
    steps = len(np.unique(trace.step))
    assert names.count("aten::_cudnn_rnn") == names.count("aten::_cudnn_rnn_backward") == steps
    assert not [name for name in names if "mkldnn" in name]
