"""Replicas that are lost with their node, and what goes with them: prompts and answers apart, adapters, caches. Each is
worked by hand: passes of 1 us, or 100 ns for a token."""

import numpy as np
import pytest

from etude.machine import System, open_system
from etude.world.serve.adapters import LoraCost
from etude.world.serve.cache import cache_rules, on_system
from etude.world.serve.requests import requests_of
from etude.world.serve.steps import step_cost
from etude.world.serve.wire import wire_of
from small_worlds import S, faults, machine_of, run, serving, wrong_in

LINEAR = step_cost(tokens=[1, 101], layers_ns=[100.0, 10100.0])
"""100 ns for a token."""


def apart(machine, split=(1, 2), *, latency_ns=1000, cold_ns=0, requests=None, **more):
    """One request of a token in and four out, if no others are given: a token takes a nanosecond on the wire."""
    wire = wire_of(1.0, 1e9, latency_ns, choose="best")
    requests = requests_of([0], [1], [4]) if requests is None else requests
    usual = {"router": "least", "cold_ns": cold_ns, "wire": wire, "token_bytes": 1.0}
    return serving(machine, requests, split=split, **usual | more)


@pytest.mark.parametrize(
    ("latency", "node", "at", "ends"),
    [
        # read by 1000, sent by 1001 + 100; tokens at 2101 and 3101; lost; three tokens read again by 3500, the last
        (100, 1, 2500, 4500),
        # the transfer until 2001 is lost; sent again from 1500 to the other until 2501, and three tokens more
        (1000, 1, 1500, 5501),
        # keys and values are lost before they were sent: the prompt and a token are read where the answer is written
        (1000, 0, 1500, 4500),
        # its source is lost when all was sent: nothing changes
        (100, 0, 1500, 4101),
        # another replica is lost
        (100, 2, 1500, 4101),
    ],
)
def test_an_answer_goes_on_when_either_side_of_it_is_lost(latency, node, at, ends):
    machine = machine_of(3, faults((at, node, S)))
    chat = apart(machine, latency_ns=latency)
    run(machine, 20_000)
    assert chat.ready.state.request["first_ns"].tolist() == [1000]
    assert chat.ready.state.request["finish_ns"].tolist() == [ends]
    assert chat.figures(20_000)["failures"] == 1
    assert chat.ready.state.replica["used"].sum() == chat.ready.state.replica["pending"].sum() == 0
    assert wrong_in(machine, 20_000) == []


def test_a_prompt_waits_for_the_only_replica_that_reads_them():
    # lost at 500, on a free node from 1000 on: read by 2000, sent by 3001, and three tokens
    machine = machine_of(4, faults((500, 0, S)))
    chat = apart(machine, cold_ns=500)
    run(machine, 20_000)
    request = chat.ready.state.request
    assert (request["first_ns"][0], request["finish_ns"][0]) == (2000, 6001)


def test_keys_and_values_wait_where_they_are_for_a_replica_that_writes():
    # the transfer is lost at 1500; repaired at 5000, and there a nanosecond later: sent by 6002, and three tokens
    machine = machine_of(2, faults((1500, 1, 3500)))
    chat = apart(machine, (1, 1))
    run(machine, 20_000)
    assert chat.ready.state.request["finish_ns"].tolist() == [9002]
    assert chat.ready.state.request["preempted"].tolist() == [0]


def test_both_sides_are_lost_with_one_node():
    # two devices on each node, so one replica of each kind is on node 0, and the others are on node 1
    machine = machine_of(2, faults((1500, 0, S)), per_node=2)
    chat = apart(machine, (1, 2))
    run(machine, 20_000)
    # row 0 reads and row 1 writes on node 0; row 2, on node 1, reads two tokens by 2500, and writes
    assert chat.ready.state.request["finish_ns"].tolist() == [4500]
    assert chat.ready.state.request["decoder"].tolist() == [2]


def test_the_adapters_of_a_lost_replica_are_loaded_again_and_leave_their_slots():
    # 300 ns to load: a token at 1300 and, lost at 1500, again from 2000 on: loaded and two tokens read by 3300, the
    # last at 4300. The other adapter waits for the one slot: loaded and answered by 5600.
    machine = machine_of(2, faults((1500, 0, S)))
    requests = requests_of([0, 1600], [1, 1], [3, 1], adapter=[0, 1])
    chat = serving(machine, requests, cold_ns=500, rules={"max_loras": 1}, lora=LoraCost(load_ns=300))
    run(machine, 20_000)
    assert chat.ready.state.request["finish_ns"].tolist() == [4300, 5600]
    assert chat.ready.state.replica["loaded"].tolist() == [3]


def test_adapters_of_a_transfer_that_is_lost_leave_their_slot():
    # loaded and read by 1300, and loaded for the answer during the transfer. Its source is lost at 1500: loaded, which
    # a pass still waits for, and two tokens read by 2800. The other has the slot from 6000 on, each side loads it.
    machine = machine_of(2, faults((1500, 0, 3500)))
    requests = requests_of([0, 6000], [1, 1], [2, 2], adapter=[0, 1])
    chat = apart(machine, (1, 1), requests=requests, rules={"max_loras": 1}, lora=LoraCost(load_ns=300))
    run(machine, 20_000)
    assert chat.ready.state.request["finish_ns"].tolist() == [2800, 6000 + 1300 + 1001 + 1300]
    assert (chat.ready.state.adapter[:, :, 0] <= 0).all()


@pytest.mark.parametrize(
    ("cache", "lost", "reads"),
    [
        ("prefix", False, 160),  # 320 of 480 tokens are found
        ("prefix", True, 480),
        ("prefix host=1GB", True, 480),
        ("blocks host=1GB", True, 480),
        ("prefix remote=1GB shared", True, 160),  # loads take no time here
    ],
)
def test_a_cache_goes_with_its_node_and_one_that_all_share_stays(cache, lost, reads):
    machine = machine_of(2, faults(*[(50_000, 0, S)] * lost))
    first, second = [("rules", 320)], [("rules", 320), ("own", 160)]
    requests = requests_of([0, 60_000], [320, 480], [1, 1], segments=[first, second])
    chat = serving(machine, requests, cold_ns=500, cost=LINEAR, rules={"cache": cache})
    run(machine, 200_000)
    assert chat.ready.state.request["finish_ns"].tolist() == [32_000, 60_000 + 100 * reads]
    assert wrong_in(machine, 200_000) == []


@pytest.mark.parametrize(("per", "reads"), [("all", 160), ("infiniband", 160), ("node", 480), ("rank", 480)])
def test_a_tier_that_a_system_has_beyond_its_nodes_stays(per, reads):
    """Nothing fits the tier of the node, so all is on the other."""
    tiers = [{"name": "disk", "read": "1GB/s", "write": "1GB/s"}, {"name": "far", "read": "1GB/s", "write": "1GB/s"}]
    said = open_system("dgx-h100").to_dict() | {"tiers": [tiers[0], tiers[1] | {"per": per}]}
    caching = on_system(cache_rules("prefix disk=0B far=1GB@2GB/s"), System.from_dict(said), 1e6)
    machine = machine_of(2, faults((50_000, 0, S)))
    segments = [[("rules", 320)], [("rules", 320), ("own", 160)]]
    requests = requests_of([0, 60_000], [320, 480], [1, 1], segments=segments)
    chat = serving(machine, requests, cost=LINEAR, rules={"cache": "prefix disk=0B far=1GB"}, caching=caching)
    run(machine, 200_000)
    assert chat.ready.state.request["finish_ns"].tolist() == [32_000, 60_000 + 100 * reads]


@pytest.mark.parametrize(
    ("lost", "lasting_ns", "reads"),
    [
        ((), 0, [320, 160, 160]),
        # lost with the rules; they are read again, and kept nowhere as its place is empty when that is done
        ((2,), 110_000, [320, 480, 480]),
        # it is there again by then
        ((2,), 70_000, [320, 480, 160]),
        # the replica that read them is lost, which keeps nothing
        ((0,), 70_000, [320, 160, 160]),
    ],
)
def test_a_part_of_a_store_is_lost_with_its_replica(lost, lasting_ns, reads):
    """A request each 100 us, on each of three replicas in turn: the first reads the rules, whose place is the third. A
    node is lost at 50 us, and the second request has read all at 148 us."""
    machine = machine_of(3, faults(*[(50_000, node, lasting_ns) for node in lost]))
    segments = [[("rules", 320, 2)], *([("rules", 320, 2), (f"own{k}", 160, 0)] for k in range(2))]
    requests = requests_of([0, 100_000, 200_000], [320, 480, 480], [1] * 3, segments=segments)
    rules = {"cache": "blocks host=1GB sharded link=50GB/s"}
    chat = serving(machine, requests, replicas=3, cost=LINEAR, rules=rules)
    run(machine, S)
    took = chat.ready.state.request["finish_ns"] - requests.arrival_ns
    assert (took // 100).tolist() == reads
    assert wrong_in(machine, S) == []


@pytest.mark.parametrize(
    ("events", "ends", "empty"),
    [
        # both passes take as long as the longer one
        ((), [10_000, 10_000, 10_200], 1),
        # the pass of the second goes on; then it reads what the other had, and what has come
        (((5_000, 0),), [20_200, 10_000, 20_200], 0),
    ],
)
def test_nobody_waits_at_a_barrier_for_a_replica_that_is_lost(events, ends, empty):
    machine = machine_of(2, faults(*[(at, node, S) for at, node in events]))
    requests = requests_of([0, 0, 9_000], [100, 10, 2], [1, 1, 1])
    chat = serving(machine, requests, replicas=2, cost=LINEAR, rules={"barrier": True})
    run(machine, 50_000)
    assert chat.ready.state.request["finish_ns"].tolist() == ends
    assert int(chat.ready.state.replica["dummy"].sum()) == empty


def test_who_waits_at_a_barrier_begins_when_the_other_is_lost():
    """The second replica has nothing until 2 us, and then waits for the pass of the first, which is lost at 5."""
    machine = machine_of(2, faults((5_000, 0, S)))
    requests = requests_of([0, 2_000], [100, 10], [1, 1])
    chat = serving(machine, requests, replicas=2, cost=LINEAR, rules={"barrier": True})
    run(machine, 50_000)
    assert chat.ready.state.request["finish_ns"].tolist() == [16_000, 16_000]


@pytest.mark.parametrize("seed", range(60))
def test_no_request_is_lost(seed):
    """Random faults on replicas with everything: all requests are answered, and what they held is free again."""
    random = np.random.default_rng(seed)
    rows = sorted(
        (int(random.integers(60_000)), int(random.integers(6)), int(random.integers(1, 30_000))) for _ in range(9)
    )
    machine = machine_of(6, faults(*rows))
    count = 40
    prompt = random.integers(1, 4, count) * 16 + 1
    segments = [
        [(f"rules{random.integers(3)}", int(n) // 2), (f"own{k}", int(n) - int(n) // 2)] for k, n in enumerate(prompt)
    ]
    requests = requests_of(
        np.sort(random.integers(0, 50_000, count)), prompt, random.integers(1, 9, count), segments=segments,
        adapter=random.integers(-1, 3, count),
    )  # fmt: skip
    cache = (
        "none",
        "prefix",
        "prefix host=100B nvme=1GB",
        "blocks host=1GB",
        "prefix remote=1GB shared",
        "blocks host=1GB sharded link=50GB/s",
    )[seed % 6]
    rules = {"cache": cache, "max_loras": 2, "num_gpu_blocks": 24, "max_num_seqs": 5, "barrier": seed % 7 == 0}
    more = {"cold_ns": int(random.integers(3000)), "requests": requests, "rules": rules, "lora": LoraCost(load_ns=70)}
    router = str(random.choice(["least", "two", "turn"]))
    split = ((2, 3), (1, 1), (0, 0))[seed % 3]
    if sum(split):
        chat = apart(machine, split, router=router, **more)
    else:
        chat = serving(machine, replicas=4, router=router, **more)
    run(machine, 10**8)
    state = chat.ready.state
    assert (state.request["finish_ns"] < 10**8).all()
    for name in ("used", "pending", "running", "adapters"):
        assert not state.replica[name].any(), name
    for queue in ("inbox", "waiting", "coming", "landing"):
        assert not state.replica[queue]["count"].any()
    assert (state.adapter[:, :, 0] <= 0).all()
    assert wrong_in(machine, 10**8) == []
