"""The same study on a Ray cluster of this machine: the same bytes."""

from pathlib import Path

import pytest

ray = pytest.importorskip("ray")

STUDY = """
run:
  made: generate micro all_reduce --ranks 4 --bytes {size} -o job
  ran: simulate job --system {machine} --json
  seen: trend times.csv --json
machine: dgx-h100
sweep: {size: [1MB, 4MB, 16MB]}
baseline: {}
variants: {}
metrics: {ns: ran.makespan_ns, level: seen.level}
"""


def whole(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_same_bytes_as_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from etude.cli import main

    monkeypatch.setenv("RAY_DISABLE_IMPORT_WARNING", "1")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text(STUDY)
    times = "step,step_time\n" + "".join(f"{i},{100 + i % 3}\n" for i in range(40))
    (tmp_path / "times.csv").write_text(times)
    assert main(["study", "run", "my.yaml", "-o", "here", "-j", "1"]) == 0
    code = main(["study", "run", "my.yaml", "-o", "there", "-j", "2", "--ray", "local"])
    said = capsys.readouterr().err
    if "Ray did not start" in said:  # a machine that is too busy, or has no shared memory
        pytest.skip(said)
    assert code == 0
    assert not ray.is_initialized()
    assert whole(tmp_path / "here") == whole(tmp_path / "there")
