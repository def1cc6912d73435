"""`etude predict --program`: the step of a program that never ran."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.model.schema import UNKNOWN, Kind
from etude.surface.cli import main

pytest.importorskip("torch")
PROGRAMS = Path(__file__).parent / "programs"


def predicted(
    capsys: pytest.CaptureFixture[str], *words: str, program: str = "dry_train.py cast", system: str = "dgx-h100"
) -> dict[str, Any]:
    file, *given = program.split()
    command = f"{sys.executable} {PROGRAMS / file} {' '.join(given)}"
    assert main(["predict", "--program", command, "--system", system, "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_step_and_its_memory_have_ranges_where_programs_were_measured(capsys: pytest.CaptureFixture[str]) -> None:
    found, away = predicted(capsys, "--world", "1"), predicted(capsys, "--world", "1", system="mi300x-node")
    figures = ("step_ns", "peak_allocated_bytes", "peak_reserved_bytes")
    assert all(isinstance(found[name], int) and found[name] > 0 for name in figures)
    predictions = (*figures, "mfu")
    for name in predictions:
        assert found["low"][name] < found["low_50"][name] < found[name] < found["high_50"][name] < found["high"][name]
    assert "programs of other people on one H200" in found["basis"]["step_ns"]["text"]
    assert away["low"] == away["high"] == dict.fromkeys(predictions)
    assert {name: its["evidence"] for name, its in away["basis"].items()} == dict.fromkeys(predictions, False)
    assert "no evidence for the program step on AMD Instinct MI300X" in away["basis"]["step_ns"]["text"]
    assert found["fits"] is True and found["ranks"] == 1
    assert found["outside_bytes"] == {"context": 500 * 2**20}  # a rank alone has no buffers for others
    assert found["device_bytes"] == found["peak_reserved_bytes"] + 500 * 2**20


def test_the_host_sets_the_pace_of_small_operators(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [sys.executable, str(PROGRAMS / "dry_train.py"), "cast"]
    assert main(["collect", "--dry", "--device", "h100", "-o", str(tmp_path / "job"), "--", *words]) == 0
    nodes = len(etude.open(tmp_path / "job").traces[0])
    capsys.readouterr()
    found = predicted(capsys, "--world", "1", "--host", "1ms")
    assert found["step_ns"] == pytest.approx(nodes * 1_000_000, rel=0.01)


def test_ranks_wait_for_their_collectives(capsys: pytest.CaptureFixture[str]) -> None:
    one = predicted(capsys, "--world", "1", program="dry_ddp.py")
    many = predicted(capsys, "--world", "64", program="dry_ddp.py")
    assert many["ranks"] == 64 and many["step_ns"] > one["step_ns"]
    # One group: 24 channels of 2 connections, each 4 MiB, 512 KiB and 4,915,200 bytes.
    assert many["outside_bytes"]["nccl"] == 48 * (4_194_304 + 524_288 + 4_915_200)
    told = "NCCL has buffers of 462 MB: 24 channels and 2 connections in each of 1 group"
    assert told in many["assumptions"]


def test_a_program_on_a_cpu_finds_no_accelerator(capsys: pytest.CaptureFixture[str]) -> None:
    found = predicted(capsys, "--world", "1", program="dry_train.py", system="xeon-8480")
    weights = 4 * (64 * 128 + 128 + 128 * 32 + 32)
    assert weights <= found["memory_by_class"]["weights"] < weights + 4 * 512  # in the host's memory
    assert "workspaces" not in found["memory_by_class"] and found["step_ns"] > 0


def test_one_process_was_recorded_and_two_are_predicted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Gloo on a host: a slow link takes as long as its bytes do, on top of what one process does."""
    run, words = tmp_path / "run", [sys.executable, str(PROGRAMS / "dry_ddp.py")]
    ranks = ["-m", "torch.distributed.run", "--nproc-per-node", "1"]
    assert main(["collect", "-o", str(run), "--steps", "2", "--warmup", "1", "--", words[0], *ranks, words[1]]) == 0
    host = tmp_path / "host.yaml"
    host.write_text(
        "name: this-host\ndevice: {name: core, cpu: true, peak: {fp32: 80G}, memory: 16GB, memory_bandwidth: 10GB/s}\n"
        "levels: [{name: gloo, kind: switch, size: 2, bandwidth: 1kB/s, latency: 100us}]\n"
    )
    given = ["--times-of", str(run), "--world"]
    one, two = (predicted(capsys, *given, n, program="dry_ddp.py", system=str(host)) for n in ("1", "2"))
    gradients_bytes = 4 * (16 * 8 + 8)
    assert two["step_ns"] - one["step_ns"] == pytest.approx(gradients_bytes * 1_000_000, rel=0.1)


def test_times_of_a_recording_give_its_step_again(tmp_path: Path) -> None:
    """A recording of the CPU and a dry run of the same program: the host's time of a step is that of the recording."""
    run, words = tmp_path / "run", [sys.executable, str(PROGRAMS / "dry_train.py")]
    assert main(["collect", "-o", str(run), "--steps", "2", "--warmup", "1", "--", *words]) == 0
    options = ["--dry", "--times-of", str(run), "-o", str(tmp_path / "job")]
    assert main(["collect", *options, "--", *words]) == 0
    trace, recorded = (etude.open(tmp_path / name).traces[0] for name in ("job", "run"))
    compute = trace.kind == Kind.COMP
    assert (trace.duration_ns[compute] > 0).all() and set(trace.cpu[compute].tolist()) == {1}
    called = np.isin(np.arange(len(recorded)), recorded.parent)  # their time is that of what they call
    in_steps = (recorded.step != UNKNOWN) & ~called & (recorded.duration_ns > 0)
    steps = len(np.unique(recorded.step[in_steps]))
    assert trace.duration_ns[compute].sum() == pytest.approx(recorded.duration_ns[in_steps].sum() / steps, rel=0.1)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--program", "", "--system", "dgx-h100"], "is empty"),
        (["--program", "train.py 'x", "--system", "dgx-h100"], "is no command"),
        (["--program", "absent.py", "--system", "dgx-h100"], "absent.py: there is no such script"),
        (["--program", "ls", "--system", "dgx-h100"], "does not start a Python program"),
        (["--program", "a.py", "--system", "dgx-h100", "--times-of", "r", "--host", "5us"], "has all times"),
        (["--program", "a.py", "--system", "dgx-h100", "--times-of", "no-such-run"], "no-such-run"),
    ],
)
def test_bad_input_is_a_sentence(words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *words]) == 2
    assert what in capsys.readouterr().err
