"""The same study on a Ray cluster of this machine: the same bytes. One cluster for all tests here."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.base.cluster import connected
from etude.base.errors import UsageError
from etude.decide.study.on_ray import RayMachine, on_ray
from etude.decide.study.points import points_of
from etude.decide.study.spec import spec_of
from etude.extend import Space, evaluate
from later import later

ray = later("ray")

STUDY = """
run:
  made: generate micro all_reduce --ranks 4 --bytes {size} -o job
  ran: simulate job --system {machine} --json
  seen: trend times.csv --json
machine: dgx-h100
sweep: {size: [1MB, 4MB]}
baseline: {}
variants: {}
metrics: {ns: ran.makespan_ns, level: seen.level}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_DISABLE_IMPORT_WARNING", "1")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        try:
            with connected("local", 2) as found:
                yield found
        except UsageError as problem:  # a machine that is too busy, or has no shared memory
            if "Ray did not start" not in str(problem):
                raise
            pytest.skip(str(problem))
    assert not ray.is_initialized()


def whole(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_same_bytes_as_here(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.surface.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text(STUDY)
    times = "step,step_time\n" + "".join(f"{i},{100 + i % 3}\n" for i in range(40))
    (tmp_path / "times.csv").write_text(times)
    assert main(["study", "run", "my.yaml", "-o", "here", "-j", "1"]) == 0
    assert main(["study", "run", "my.yaml", "-o", "there", "-j", "2", "--ray", "local"]) == 0
    assert whole(tmp_path / "here") == whole(tmp_path / "there")


def test_a_fleet_over_seeds_is_the_same_there(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of ways to recover, on fewer devices and seeds: faults are those of the seed, wherever it runs."""
    from etude.surface.cli import main

    text = (Path(__file__).parents[2] / "examples" / "study_fleet.yaml").read_text(encoding="utf-8")
    for old, new in (("--gpus 64", "--gpus 16"), ("--days 7", "--days 14"), ("seeds: 8", "seeds: 2")):
        assert old in text
        text = text.replace(old, new)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text(text, encoding="utf-8")
    assert main(["study", "run", "my.yaml", "-o", "here", "-j", "1"]) == 0
    assert main(["study", "run", "my.yaml", "-o", "there", "-j", "1", "--ray", "local"]) == 0
    assert whole(tmp_path / "here") == whole(tmp_path / "there")


def test_a_search_is_the_same_there_and_connects_once(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from etude.base import cluster
    from etude.surface.cli import main

    connections = []

    def counted(address: str, workers: int) -> Any:
        connections.append(address)
        return connected(address, workers)

    monkeypatch.setattr(cluster, "connected", counted)
    words = ["search", "gpt2", "--gpus", "4", "--seq", "128", "--system", "dgx-h100", "--over", "tp=1|2,zero", "--json"]
    assert main(words) == 0
    here = capsys.readouterr().out
    assert main([*words, "--ray", "local", "-j", "2", "-o", str(tmp_path / "there")]) == 0
    there = json.loads(capsys.readouterr().out)
    assert {name: there[name] for name in json.loads(here)} == json.loads(here)  # a folder has a breakdown, too
    assert connections == ["local"]


def test_a_machine_that_is_lost_is_replaced_and_its_task_tried_again(cluster: Any, tmp_path: Path) -> None:
    marker = str(tmp_path / "died")

    class Fragile(RayMachine):
        def carry_out(self, task: dict[str, Any], packed: Any) -> Any:
            if "dgx-a100" in task["commands"][0] and not os.path.exists(marker):
                open(marker, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().carry_out(task, packed)

    sweep = {"name": ["dgx-h100", "dgx-a100"]}
    spec = spec_of({"run": ["systems show {name} --json"], "sweep": sweep, "metrics": {"n": "len(levels)"}}, "s", "s",
                   Path("/nowhere"))  # fmt: skip
    tasks = [point.task for point in points_of(spec, list(spec.variants))]
    found = {task.key: answer for task, answer in on_ray("local", 1, Fragile)(tasks)}
    assert Path(marker).exists()
    assert [found[task.key]["error"] for task in tasks] == ["", ""]
    assert [len(found[task.key]["answers"]) for task in tasks] == [1, 1]


def test_a_function_and_a_job_go_through_the_object_store(cluster: Any, tmp_path: Path) -> None:
    """A function that only this test knows; its machine is lost once."""
    from etude.model.build import job_of
    from tiny_jobs import GROUPS, ring

    job, marker = job_of("ring", [ring(rank) for rank in range(4)], GROUPS), str(tmp_path / "died")

    def nodes(rank: int, job: etude.Job) -> dict[str, int]:
        if rank == 2 and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"nodes": len(job.trace(rank))}

    space = Space(axes={"rank": [0, 1, 2, 3]})
    there = evaluate(space, nodes, shared={"job": job}, ray="local")
    assert Path(marker).exists()
    assert there.equals(evaluate(space, nodes, shared={"job": job}))


def test_ranks_of_a_recording_are_read_there(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from etude.surface.cli import main

    sample = Path(etude.__file__).parent / "capture" / "sample"
    (tmp_path / "run").mkdir()
    for rank in range(2):
        for kind in ("et", "kineto"):
            content = (sample / f"gpt.rank0.{kind}.json.gz").read_bytes()
            (tmp_path / "run" / f"gpt.rank{rank}.{kind}.json.gz").write_bytes(content)
    monkeypatch.chdir(tmp_path)  # a path that machines would not find
    assert main(["breakdown", "run", "--csv"]) == 0
    here = capsys.readouterr()
    assert main(["breakdown", "run", "--csv", "--ray", "local"]) == 0
    assert capsys.readouterr() == here
    assert len(here.out.splitlines()) == 3
    (tmp_path / "run" / "gpt.rank1.kineto.json").write_text('{"schemaVersion": 1, "traceEvents": [}')
    (tmp_path / "run" / "gpt.rank1.kineto.json.gz").unlink()
    assert main(["breakdown", "run", "--ray", "local"]) == 2
    assert "gpt.rank1.kineto.json" in capsys.readouterr().err
    assert main(["breakdown", str(sample / "gpt.rank0.kineto.json.gz"), "--ray", "local"]) == 2
    assert "hint: leave out --ray" in capsys.readouterr().err
