"""The commands on a job and on a profiler's raw trace."""

import json
from pathlib import Path

import pytest

from etude.surface.cli import main

TRACE = Path(__file__).resolve().parents[2] / "src" / "etude" / "capture" / "sample" / "gpt.rank0.kineto.json.gz"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main([str(a) for a in argv]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_breakdown_says_what_scripts_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "breakdown", str(TRACE), "--json"))
    rows = found["ranks"]
    assert (found["timing"], found["anchored"], found["step_ns"]) == ("estimated", False, rows[0]["step_ns"])
    assert found["low"]["step_ns"] < found["step_ns"] < found["high"]["step_ns"] < found["recorded_step_ns"]
    assert found["low"]["busy_share"] < found["busy_share"] < found["high"]["busy_share"]
    recorded = json.loads(run(capsys, "breakdown", str(TRACE), "--json", "--as-recorded"))
    assert (recorded["timing"], recorded["step_ns"]) == ("recorded", found["recorded_step_ns"])
    assert found["busy_share"] == rows[0]["busy_share"] == 1 - rows[0]["idle_ns"] / rows[0]["span_ns"]
    keys = {"rank", "span_ns", "compute_ns", "comm_ns", "exposed_comm_ns", "memory_ns", "idle_ns", "overlap_pct"}
    assert keys <= set(rows[0])
    row = rows[0]
    parts = row["compute_ns"] + row["exposed_comm_ns"] + row["exposed_memory_ns"] + row["idle_ns"]
    assert parts == row["span_ns"] > 0


def test_the_critical_path_says_what_scripts_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "critical-path", str(TRACE), "--json"))
    assert set(found) == {"length_ns", "by_kind", "path"}
    assert sum(found["by_kind"].values()) == found["length_ns"] > 0
    assert set(found["path"][0]) == {"rank", "node", "name", "kind", "start_ns", "end_ns"}
    told = json.loads(run(capsys, "critical-path", str(TRACE), "--json", "--buys", "2"))["what_if"]
    assert len(told) == 2
    for row in told:
        assert 0 <= row["buys_10_ns"] <= row["buys_50_ns"] <= row["buys_100_ns"] <= row["time_ns"]


def test_stragglers_say_what_scripts_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(run(capsys, "stragglers", str(TRACE), "--json")) == {"findings": []}


@pytest.mark.parametrize(
    "argv",
    [["idle"], ["idle", "--launches"], ["idle", "--queues"], ["idle", "--streams"], ["breakdown", "--types"],
     ["breakdown", "--as", "tracelens"], ["idle", "--launches", "--as", "hta"], ["kernels", "--as", "hta"],
     ["idle", "--queues", "--calls", "^cuda"], ["memory", "--copies", "--as", "hta"], ["kernels", "--top", "3"],
     ["kernels", "--operators"],
     ["collectives"], ["memory", "--copies"], ["roofline", "--device", "h200"],
     ["roofline", "--device", "h200", "--utilisation"], ["breakdown", "--overlap", "compute", "--overlap", "memory"],
     ["kernels", "--by", "stack:1"], ["kernels", "--patterns"], ["breakdown", "--steps"], ["breakdown", "--variation"]],
)  # fmt: skip
def test_every_command_takes_a_raw_trace(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, argv[0], str(TRACE), *argv[1:], "--json"))
    if argv == ["idle"]:
        assert found["timing"] == "estimated" and [one["rank"] for one in found["ranks"]] == [0]
        found = found["rows"]
    elif argv[:2] == ["breakdown", "--as"]:
        found = found["ranks"]
    assert isinstance(found, list)
    if argv[0] != "collectives":
        assert found


def test_compare_says_how_alike(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "compare", str(TRACE), str(TRACE), "--json"))
    assert found["similarity"]["score"] == 1.0
    assert set(found) == {"similarity", "breakdown", "host", "reasons", "causes"}


def test_a_job_without_times_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from etude.model.build import job_of
    from etude.store import chakra
    from tiny_jobs import GROUPS, ring

    job = job_of("ring", [ring(r) for r in range(4)], GROUPS)
    folder, times = tmp_path / "ring", tmp_path / "t.parquet"
    folder.mkdir()
    chakra.write_job(job, folder)
    assert main(["breakdown", str(folder)]) == 2
    assert "hint: --system dgx-h100" in capsys.readouterr().err
    rows = json.loads(run(capsys, "breakdown", str(folder), "--system", "dgx-h100", "--json"))
    assert len(rows["ranks"]) == 4 and rows["timing"] == "program"
    run(capsys, "simulate", str(folder), "--system", "dgx-h100", "--timing", str(times))
    assert json.loads(run(capsys, "breakdown", str(folder), "--timing", str(times), "--json")) == rows


@pytest.mark.parametrize(
    "argv",
    [["breakdown", "--as", "nsys"], ["idle", "--calls", "^cuda"], ["idle", "--queues", "--calls", "("],
     ["breakdown", "--types", "--overlap", "compute", "--overlap", "memory"]],
)  # fmt: skip
def test_what_cannot_be_asked_for(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    assert main([argv[0], str(TRACE), *argv[1:]]) == 2
    assert "error:" in capsys.readouterr().err


def test_simulate_prints_the_breakdown_of_its_run(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of copies that a profiler recorded as kernels, and of gloo, where the host is the device."""
    for path in (str(TRACE), str(shared / "traces" / "torch_cpu" / "pp_1f1b_2p")):
        asked = (path, "--system", "dgx-h100", "--json")
        spent = json.loads(run(capsys, "breakdown", *asked))["ranks"]
        printed = json.loads(run(capsys, "simulate", *asked))["ranks"]
        assert [{name: rank[name] for name in row} for row, rank in zip(spent, printed, strict=True)] == spent
        assert set(printed[0]) == {*spent[0], "finish_ns"}  # nothing says what is in memory


def test_metrics_simulates_on_a_system_as_other_analyses_do(capsys: pytest.CaptureFixture[str]) -> None:
    """The embedded recording is of a CUDA device that waits for its host; `--ran-on` keeps its times."""
    import etude

    path = Path(etude.__file__).parent / "capture" / "sample" / "gpt.rank0.kineto.json.gz"

    def asked(*options: str) -> tuple[dict[str, float], str]:
        assert main(["metrics", str(path), "--json", *options]) == 0
        shown = capsys.readouterr()
        return {row["metric"]: row["value"] for row in json.loads(shown.out)["rows"]}, shown.err

    recorded, _ = asked()
    ran, _ = asked("--ran-on", "dgx-h100")
    simulated, told = asked("--system", "dgx-h100")
    run = etude.simulate(etude.open(path), etude.open_system("dgx-h100"))
    wanted = {row["metric"]: row["value"] for row in etude.metrics(run).to_pylist()}
    assert simulated == wanted
    assert ran.items() >= recorded.items()
    assert "note: recorded times are replaced by a simulation on dgx-h100" in told
    assert main(["metrics", str(path), "--system", "dgx-h100", "--timing", "t.parquet"]) == 2
    assert "--ran-on" in capsys.readouterr().err


def test_diagnose_says_what_it_cannot_see_and_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(TRACE)]) == 0
    told = capsys.readouterr()
    assert "one rank: it has no peers" in told.err and "looked for in 12 or more" in told.err
    assert all(str(TRACE) in line for line in told.out.splitlines() if line.startswith("   etude"))


def test_diagnose_without_times_does_not_call_a_run_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    host = TRACE.with_name("gpt.rank0.et.json.gz")
    assert main(["diagnose", str(host)]) == 0
    told = capsys.readouterr().err
    assert "nothing else was looked for" in told and "worth doing" not in told
