"""Tasks that stand on one backbone."""

from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.machine import open_system
from etude.surface.cli import main
from etude.world.fleet.services.backbone import Hosted, backbone_record, backlogged, fitting_tasks, run_backbone
from etude.world.fleet.services.costs import slice_of
from etude.world.fleet.services.loop import drawn, run_turns
from etude.world.fleet.services.spec import Backbone, BackboneTask, Service, Services, read_backbone

MS = 1_000_000


def served(policy: str, weights: list[float], costs, rows, batch: int = 4, extra: int = 0) -> Hosted:
    spec = Backbone(
        system="dgx-a100", backbone="b", tasks=None, load=1.0, batch=batch, policy=policy, extension_time_ns=extra
    )
    task, arrival = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    tasks = [BackboneTask(name=str(k), weight=w) for k, w in enumerate(weights)]
    by_share = {share: np.array(cost, np.int64) for share, cost in costs.items()}
    return run_backbone(spec, tasks, by_share, task, arrival)


def test_a_shared_batch_takes_requests_of_all_tasks_and_pays_for_each_task_in_it():
    rows = [(0, 0), (1, 0), (2, 0), (0, 0)]
    found = served("shared", [1, 1, 1], {1.0: [10, 12, 14]}, rows, extra=1)
    assert found.end_ns.tolist() == [17] * 4  # one batch of four, three tasks in it
    found = served("colocate", [1, 1, 1], {1.0: [10, 12, 14]}, rows, extra=1)
    assert found.end_ns.tolist() == [13, 24, 35, 13]  # both of the first, then one each
    assert (found.batches, found.busy_ns) == (3, 35)


def test_slices_do_not_wait_for_each_other():
    rows = [(0, 0), (1, 0), (1, 5)]
    found = served("partition", [3, 1], {1.0: [10], 0.75: [13], 0.25: [40]}, rows, batch=1, extra=3)
    assert found.end_ns.tolist() == [17, 52, 104]
    assert found.busy_ns == round(17 * 0.75 + 104 * 0.25)
    assert backlogged(found) is None


def test_two_backlogged_tasks_get_their_shares_within_a_request():
    rows = [(k % 2, 0) for k in range(800)]
    found = backlogged(served("shared", [3, 1], {1.0: [10, 12, 14]}, rows))
    assert found is not None and found["off"] <= 1
    assert found["requests"] == pytest.approx([396, 132], abs=4)  # until the first task has no more


def test_who_was_away_does_not_catch_up():
    rows = [(0, 0)] * 100 + [(1, 500)] * 50
    found = served("shared", [1, 1], {1.0: [10]}, rows, batch=1)
    between = found.task[np.argsort(found.start_ns)][50:100]
    assert np.bincount(between).tolist() == [25, 25]


def test_one_task_is_the_plain_service():
    task, arrival = drawn([700.0], 500, 3)
    cost = np.array([[MS, 2 * MS]], np.int64)
    plain = Services(system="dgx-a100", services=[], load=1.0, batch=2, policy="fifo")
    ends = run_turns(plain, [Service(model="a", name="a")], [cost], task, arrival).end_ns.tolist()
    for policy in ("partition", "colocate", "shared"):
        found = served(policy, [2], {1.0: cost[0]}, zip(task, arrival, strict=True), batch=2)
        assert found.end_ns.tolist() == ends
    record = backbone_record(found)
    assert record["device_s"]["busy"] + record["device_s"]["idle"] == pytest.approx(record["duration_s"])


def test_a_backbone_counts_once_or_for_each():
    assert [fitting_tasks(p, 100, 30, 7) for p in ("shared", "colocate", "partition")] == [10, 2, 2]
    assert fitting_tasks("shared", 20, 30, 7) == 0


def test_a_slice_has_its_part_of_the_device():
    whole = open_system("dgx-a100").device
    half = slice_of(whole, 0.5)
    assert half.peak_flop_per_s["bf16"] * 2 == whole.peak_flop_per_s["bf16"]
    assert (half.cores * 2, half.memory_bytes * 2) == (whole.cores, whole.memory_bytes)
    assert half.memory_bandwidth_bytes_per_s * 2 == whole.memory_bandwidth_bytes_per_s


def test_bad_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "tasks.yaml"
    begin = "system: dgx-a100\nbackbone: vit-b16\n"
    for text, said in (
        ("load: 0.5", "tasks: give a number"),
        ("tasks: 0\nload: 0.5", "tasks: give a number"),
        ("tasks: 2", "either load, or a rate"),
        ("tasks: [{speed: 3}]\nload: 0.5", "unknown key `speed`"),
        ("tasks: [{name: a}, {name: a}]\nload: 0.5", "two tasks have the same name"),
        ("tasks: 2\nload: 0.5\nbatch: 6", "not a power of two"),
        ("tasks: 2\nload: 0.5\npolicy: fifo", "unknown policy `fifo`"),
    ):
        path.write_text(begin + text)
        with pytest.raises(UsageError, match=said):
            read_backbone(path)
    assert main(["fleet", str(path)]) == 2
    assert "unknown policy" in capsys.readouterr().err
    assert main(["fleet", str(path), "--policy", "shared", "--switch", "30s"]) == 2
    path.write_text(begin + "tasks: 3\nload: 0.5\nmemory: 400MB")
    assert main(["fleet", str(path), "--policy", "colocate"]) == 2
    assert "memory has room for 2 under `colocate`" in capsys.readouterr().err
