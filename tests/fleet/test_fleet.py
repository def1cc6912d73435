"""`etude fleet` from end to end on a small job."""

import json
from pathlib import Path

import pytest

from etude.surface.cli import main

JOB = ["gpt2", "--gpus", "16", "--zero", "0", "--system", "dgx-h100", "--days", "0.02"]
STRUCK = ["--faults", "node:mtbf=20h"]


def fleet(capsys: pytest.CaptureFixture[str], *more: str) -> dict:
    assert main(["fleet", *JOB, *more, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def whole(record: dict) -> float:
    return record["useful_s"] + sum(record["lost_s"].values())


def test_without_faults_it_is_the_prediction(capsys: pytest.CaptureFixture[str]):
    found = fleet(capsys)
    assert main(["predict", *JOB[:7], "--json"]) == 0
    step = json.loads(capsys.readouterr().out)
    steps = 0.02 * 86_400e9 // step["step_time_ns"]
    assert found["steps"] == steps and found["useful_s"] == pytest.approx(steps * step["step_time_ns"] / 1e9)
    rate = step["tokens_per_s_per_gpu"] * 16
    assert found["goodput_tokens_per_s"] == pytest.approx(rate, rel=1e-3)
    assert found["interruptions"] == 0 and found["energy_j"] > 0 and whole(found) == pytest.approx(0.02 * 86_400)


FAULTS = ["--faults", "node:mtbf=1h,repair=10min;process:mtbf=10min", "--detect", "5s"]
TIMES = (["--regroup", "2s"], ["--restart", "20s"])
"""Of policies that keep processes, and of restarts."""


@pytest.mark.parametrize("recover", ["restart", "spare", "shrink", "redistribute", "replan"])
def test_parts_add_up_for_every_way_to_recover(recover: str, capsys: pytest.CaptureFixture[str]):
    found = fleet(
        capsys, *FAULTS, "--checkpoint", "local:20s,remote:2min", "--recover", recover, *TIMES[recover == "restart"]
    )
    assert whole(found) == pytest.approx(found["duration_s"], rel=1e-9) and found["interruptions"] > 0
    assert sum(found["device_s"].values()) == pytest.approx(16 * found["duration_s"])
    assert set(found["lost_s"]) == {"detect", "restart", "redo", "checkpoint", "degraded", "idle"}


def test_a_fault_that_no_copy_outlives_is_said(capsys: pytest.CaptureFixture[str]):
    """A node is lost after 12 hours of a day: half of the day is done again, unless a copy is elsewhere."""
    once = ["--faults", "node:at=12h,every=24h,times=1", "--days", "1", "--checkpoint"]
    assert main(["fleet", *JOB[:-2], *once, "local:10min", "--json"]) == 0
    found = capsys.readouterr()
    record = json.loads(found.out)
    assert (record["interruptions"], record["without_copy"]) == (1, 1)
    assert record["lost_s"]["redo"] == pytest.approx(43_200, rel=0.01)
    assert "1 of 1 interruptions left no copy" in found.err and "50% of the time" in found.err
    assert "`local` survive a process at most" in found.err
    assert main(["fleet", *JOB[:-2], *once, "local:10min,remote:1h", "--json"]) == 0
    found = capsys.readouterr()
    assert json.loads(found.out)["without_copy"] == 0
    assert "no copy" not in found.err


def test_same_seed_same_bytes_and_the_folder_is_asked_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        fleet(capsys, *FAULTS, "--checkpoint", "remote:2min", *TIMES[1], "--seed", seed, "-o", str(tmp_path / name))
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["events.parquet", "fleet.json", "jobs.parquet", "states.parquet"]
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)
    assert (tmp_path / "a" / "events.parquet").read_bytes() != (tmp_path / "c" / "events.parquet").read_bytes()
    assert main(["query", str(tmp_path / "a"), "select sum(end_s - start_s) as s from states", "--csv"]) == 0
    assert float(capsys.readouterr().out.split()[1]) == pytest.approx(1728)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "c"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["setting"] for row in told["settings"]} == {"seed"}
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "c"), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Where the time went" in page and "Failures" in page and page.count("% useful<") == 2
    capsys.readouterr()
    again = fleet(
        capsys, *FAULTS[2:], *TIMES[1], "--checkpoint", "remote:2min", "--faults", str(tmp_path / "a/events.parquet")
    )
    written = json.loads((tmp_path / "a/fleet.json").read_text())
    assert again == {name: written[name] for name in again}  # the same events, the same answer


def test_nodes_that_a_sweep_finds_slow_are_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for i, rate in enumerate((100.0, 70.0, 101.0, 100.0)):
        figure = {"name": "gemm", "part": "device", "unit": "FLOP/s", "value": rate, "spread": 0.01, "device": "cuda:0"}
        head = {"format": "etude node", "version": 1, "name": f"node{i}", "about": {}, "figures": [figure]}
        (tmp_path / f"node{i}.json").write_text(json.dumps(head))
    slow = [
        "--faults",
        "slow:at=60s,every=1d,times=1,factor=2,duration=10min,skew=9",
        "--spares",
        "2",
        "--recover",
        "spare",
    ]
    found = fleet(capsys, *slow, "--sweep", str(tmp_path))
    assert found["excluded"] == [1] and fleet(capsys, *slow, "--exclude", "1") == found
    assert [c["micro_batches"] for c in found["configs"]] == [1]
    for more, said in ((["--exclude", "x"], "`x` is not a count"), (["--sweep", "nowhere"], "0 files of nodes"),
                       (["--exclude", "0-2"], "3 nodes are excluded")):  # fmt: skip
        assert main(["fleet", *JOB, *slow, *more]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--days", "-1"], "days"),
        ([*STRUCK, "--recover", "pray"], "unknown policy `pray`"),
        (["--faults", "node:mtbf=x"], "is not a time"),
        (["--checkpoint", "local:soon"], "not a time"),
        (["--tp", "4", "--pp", "4", *STRUCK, "--recover", "shrink"], "one replica"),
        (["--gpus", "8", "--recover", "replan"], "none is left"),
        (["--checkpoint", "remote:auto"], "no fault has a rate"),
        ([*STRUCK, "--spares", "many"], "not a number of nodes"),
        ([*STRUCK, "--restart", "-5s"], "negative"),
    ],
)
def test_what_cannot_be_is_refused(more: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["fleet", *JOB, *more]) == 2
    assert said in capsys.readouterr().err
