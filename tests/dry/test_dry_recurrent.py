"""Recurrent networks of a dry run: one operator of cuDNN, and what it keeps."""

import csv
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.capture.dry.cuda_recurrent import MODES, RecurrentWork
from etude.surface.cli import main

MEASURED = Path(__file__).parents[2] / "benchmarks" / "h200_recurrent.csv"
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


@dataclass(frozen=True)
class Row:
    """What an H200 took (`benchmarks/measure_recurrent.py`)."""

    kind: str
    work: RecurrentWork
    weights: int
    reserve_bytes: int
    scratch_bytes: int


def measured() -> list[Row]:
    found = []
    with MEASURED.open(newline="") as file:
        for row in csv.DictReader(file):
            length, batch, width, state = (int(row[name]) for name in ("length", "batch", "width", "state"))
            layers, directions, size = (int(row[name]) for name in ("layers", "directions", "bytes_each"))
            elements, kind = length * batch * state, row["kind"]
            read = [width] + [state * directions] * (layers - 1)
            weights = sum(GATES[kind] * state * (one + state + 2) * directions for one in read)
            ends = (2 if kind == "lstm" else 1) * directions * layers * batch * state
            results = (elements * directions + ends) * size
            reserve = int(row["reserve_bytes"])
            work = RecurrentWork(MODES[kind], elements, layers, directions, float(row["dropout"]) > 0, size)
            found.append(Row(kind, work, weights, reserve, int(row["forward_bytes"]) - reserve - results))
    return found


def test_a_forward_pass_keeps_what_cudnn_asked_for() -> None:
    """To the byte, but for masks of sizes that are no multiple of 64 numbers, and 16 bytes that cuDNN fills up."""
    apart = [row.reserve_bytes - row.work.kept_bytes for row in measured()]
    assert len(apart) == 200 and min(apart) >= 0 and max(apart) <= 128
    assert sum(one == 0 for one in apart) >= 160


def test_a_pass_works_with_about_what_cudnn_took() -> None:
    """Of states of 4 MB and more in 32 bits, which decide of a peak. cuDNN chooses its ways by shape: an LSTM of one
    layer in 16 bits takes up to four times as much as this."""
    rows = [row for row in measured() if row.work.element_size == 4 and row.work.elements >= 1_000_000]
    off = [row.work.scratch_bytes(row.weights) / row.scratch_bytes - 1 for row in rows]
    assert len(off) == 60
    assert float(np.median(np.abs(off))) < 0.05 and float(np.percentile(np.abs(off), 90)) < 0.2


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
