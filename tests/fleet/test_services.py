"""Services that take turns on one device."""

from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.surface.cli import main
from etude.world.fleet.services.costs import exit_costs
from etude.world.fleet.services.loop import drawn, run_turns, serve_services
from etude.world.fleet.services.results import services_record
from etude.world.fleet.services.spec import Service, Services, read_services
from etude.world.fleet.services.stability import by_shortening, stable_action

MS = 1_000_000


def spec(policy: str = "fifo", batch: int = 1) -> Services:
    return Services(system="dgx-a100", services=[], load=1.0, batch=batch, policy=policy)


def turns(policy, services, costs, rows, batch=1):
    service, arrival = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return run_turns(spec(policy, batch), services, [np.array(c, np.int64) for c in costs], service, arrival)


def test_an_exit_is_its_prefix_and_the_head():
    parts = ["stem", "layers.0", "layers.0", "layers.1", "layers.2", "layers.3", "norm", "head", "loss"]
    took = np.array([1, 10, 10, 20, 30, 40, 2, 5, 100])
    assert exit_costs(parts, took, 2, "m").tolist() == [1 + 20 + 20 + 5, 1 + 20 + 20 + 30 + 40 + 2 + 5]
    assert exit_costs(parts, took, 1, "m").tolist() == [118]
    with pytest.raises(UsageError, match="5 exits in 4 blocks"):
        exit_costs(parts, took, 5, "m")


def test_batches_are_of_one_service_and_first_come():
    a, b = Service(model="a", name="a", deadline_ns=100), Service(model="b", name="b", deadline_ns=100)
    found = turns("fifo", [a, b], [[[10, 12]], [[20, 22]]], [(0, 0), (1, 1), (0, 2), (0, 3)], batch=2)
    # a alone 0..10; b 10..30; the other two of a together 30..42
    assert found.end_ns.tolist() == [10, 30, 42, 42]
    assert (found.batches, found.busy_ns) == (3, 42)


def test_edf_takes_the_earliest_deadline_and_a_shorter_exit_for_it_alone():
    a = Service(model="a", name="a", deadline_ns=100, exits=2)
    b = Service(model="b", name="b", deadline_ns=25, exits=2)
    found = turns("edf", [a, b], [[[5], [20]], [[5], [20]]], [(0, 0), (0, 1), (1, 2)])
    # a whole 0..20; b is due at 27, so its first exit, 20..25; then a whole
    assert found.end_ns.tolist() == [20, 45, 25] and found.exit.tolist() == [1, 1, 0]


def test_stability_leaves_early_for_the_sake_of_another_queue():
    a = Service(model="a", name="a", deadline_ns=40, exits=2)
    b = Service(model="b", name="b", deadline_ns=43, exits=1)
    rows = [(0, 0), (1, 0)]
    costs = [[[5], [30]], [[20]]]
    # a whole ends at 30 and b at 50, late; after a's first exit b ends at 25
    assert turns("edf", [a, b], costs, rows).end_ns.tolist() == [30, 50]
    assert turns("stability", [a, b], costs, rows).end_ns.tolist() == [5, 25]


def test_with_one_service_and_no_exits_policies_are_one():
    service, arrival = drawn([800.0], 300, 3)
    one = [Service(model="a", name="a", deadline_ns=50 * MS)]
    cost = [np.array([[MS, 2 * MS]], np.int64)]
    ends = [run_turns(spec(p, 2), one, cost, service, arrival).end_ns.tolist() for p in ("fifo", "edf", "stability")]
    assert ends[0] == ends[1] == ends[2]


def test_the_wait_of_one_queue_is_that_of_theory_and_device_seconds_add_up():
    service, arrival = drawn([500.0], 20_000, 1)
    found = run_turns(spec(), [Service(model="a", name="a")], [np.array([[MS]], np.int64)], service, arrival)
    record = services_record(found)
    assert record["wait_s"]["mean"] == pytest.approx(0.0005, rel=0.06)  # M/D/1 at half load: half a service time
    assert record["device_s"]["busy"] == pytest.approx(20.0)
    assert record["device_s"]["busy"] + record["device_s"]["idle"] == pytest.approx(record["duration_s"])


def test_bad_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "edge.yaml"
    for text, said in (
        ("system: dgx-a100\nservices: []\nload: 0.5", "services: a list"),
        ("system: dgx-a100\nservices: [{model: resnet-50}]", "either load, or a rate"),
        ("system: dgx-a100\nservices: [{model: resnet-50, speed: 3}]\nload: 0.5", "unknown key `speed`"),
        ("system: dgx-a100\nservices: [{model: resnet-50}]\nload: 0.5\nbatch: 6", "not a power of two"),
        ("system: dgx-a100\nservices: [{model: resnet-50}]\nload: 0.5\nheadroom: 1", "leaves no time"),
        ("system: dgx-a100\nservices: [{model: resnet-50}]\nload: 0.5\npolicy: best", "unknown policy `best`"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=said):
            read_services(path)
    assert main(["fleet", str(path)]) == 2
    assert "unknown policy" in capsys.readouterr().err


def test_a_request_ends_with_its_batch_in_what_stability_expects():
    """The second queue is due at 30, and its batch of two takes 20: after the first one, whole, both end at 35. A mean
    of 10 for each request would have one of them at 25."""
    costs = [np.array([[5, 5], [15, 15]], np.int64), np.array([[8, 8], [20, 20]], np.int64)]
    found = stable_action([[0], [1, 2]], np.array([29, 30, 30]), costs, by_shortening(costs), [1, 2], 0)
    # whole: a then b 15, 35 (two late), b then a 20, 35 (one late); shortened by one exit: 5, 13, nobody is late
    assert found == (0, 0, 0)


def naive_late(queues, deadline, costs, less, k, j, sizes, now):
    """What a person would do with cards on a table."""
    left, late = [list(queue) for queue in queues], 0
    while k is not None:
        now += int(costs[k][max(len(costs[k]) - 1 - less, 0)][j])
        batch, left[k] = left[k][: sizes[j]], left[k][sizes[j] :]
        late += sum(now > deadline[r] for r in batch)
        waits = [(deadline[queue[0]], other) for other, queue in enumerate(left) if queue]
        k = min(waits)[1] if waits else None
        j = 0 if k is None else max(i for i, size in enumerate(sizes) if size <= len(left[k]))
    return late


def test_stability_takes_what_all_actions_one_by_one_say():
    draws = np.random.default_rng(5)
    for _ in range(60):
        exits = draws.integers(1, 4, 3)
        costs = [np.sort(draws.integers(1, 60, (n, 3)), axis=0).astype(np.int64) for n in exits]
        lengths = draws.integers(0, 6, 3) + np.array([1, 0, 0])
        numbers = iter(range(20))
        queues = [[next(numbers) for _ in range(n)] for n in lengths]
        deadline = np.sort(draws.integers(1, 200, 20)).astype(np.int64)
        order = sorted((deadline[q[0]], k) for k, q in enumerate(queues) if q)
        best = None
        for less in range(max(exits)):
            for _, k in order:
                for j in (2, 1, 0):
                    if less < exits[k] and [1, 2, 4][j] <= len(queues[k]):
                        late = naive_late(queues, deadline, costs, less, k, j, [1, 2, 4], 10)
                        if best is None or late < best[0]:
                            best = late, (k, exits[k] - 1 - less, j)
        assert stable_action(queues, deadline, costs, by_shortening(costs), [1, 2, 4], 10) == best[1]


def test_a_load_is_that_of_whole_networks_in_full_batches():
    """At a load of 0.7 two requests come in the time of a batch of two through all blocks over 0.7, by 400 draws."""
    one = Service(model="mobilenet-v2", exits=4)
    asked = Services(system="dgx-a100", services=[], load=0.7, batch=2, count=400)
    found = serve_services(asked, [one], seed=1)
    whole_s = found.costs[0].max() / 1e9  # the last exit, in the largest batch
    assert 400 / (found.arrival_ns[-1] / 1e9) == pytest.approx(0.7 * 2 / whole_s, rel=0.15)
