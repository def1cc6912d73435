"""One room for embeddings and for keys and values: against plain lists in order of use, all plans, and by hand."""

import json
from collections import OrderedDict
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.base.parameters import ask
from etude.machine import open_system
from etude.surface.cli import main
from etude.world.serve.asked.split import ServeSplit, SplitServed, readable, split_serving
from etude.world.serve.requests import Requests, requests_of
from etude.world.serve.split import RATIOS, SplitRules, best_sequence, served_split, split_rules
from etude.world.serve.steps import step_cost
from etude.world.serve.workloads import request_stream

MILLISECOND = step_cost(tokens=[1], layers_ns=[1e6])
RULES = SplitRules(room_bytes=1000, embedding_bytes=100, every=4, decide_ns=0, link_bytes_per_s=1e6)
DRIFT = (
    "recommend:requests={},users=2,to_users=9,items=9,to_items=3,listed=3,zipf=0,user_tokens=10,item_tokens=2,output=2"
)


def run(requests: Requests, rules: SplitRules = RULES, **more: Any) -> dict[str, Any]:
    return served_split(requests, MILLISECOND, rules, token_bytes=10.0, **more)


def prompts(*rows: tuple[int, str, str]) -> Requests:
    """Arrival in ms, a user of 10 tokens (100 bytes), items of 2 tokens; one token out."""
    segments = [[[user, 10], *[[item, 2, 0] for item in items]] for _, user, items in rows]
    lengths = [sum(one[1] for one in row) for row in segments]
    return requests_of([at * 10**6 for at, _, _ in rows], lengths, [1] * len(rows), segments=segments)


def fit(kept: Any, rooms: tuple[int, int]) -> None:
    for side, room in zip(kept, rooms, strict=True):
        while sum(side.values()) > room:
            side.popitem(last=False)


def plain_list(requests: Requests, plan: list[int]) -> tuple[list[float], int]:
    """Latencies in ms and bytes loaded on one replica: two lists in order of use, bytes at 1 kB a ms."""
    kept: tuple[OrderedDict[int, int], OrderedDict[int, int]] = (OrderedDict(), OrderedDict())
    computed, free, loaded, found = set(), 0.0, 0, []
    for r in range(len(requests)):
        ratio, load = RATIOS[plan[r // 4]], 0
        rooms = round(1000 * ratio), 1000 - round(1000 * ratio)
        fit(kept, rooms)
        for k in range(requests.block_start[r], requests.block_start[r + 1]):
            one, user = int(requests.block[k]), int(requests.block_home[k] < 0)
            if user and k > requests.block_start[r]:
                continue  # what a request asks in its own words
            mine, size = kept[user], 100
            if one in mine:
                mine.move_to_end(one)
            else:
                load += 0 if user and one not in computed else size
                if size <= rooms[user]:
                    mine[one] = size
            fit(kept, rooms)
            computed |= {one} if user else set()
        begin = max(free, requests.arrival_ns[r] / 1e6)
        free = begin + load / 1e3 + float(requests.output[r])  # a pass of a ms for each token out
        loaded += load
        found.append(free - requests.arrival_ns[r] / 1e6)
    return found, loaded


def test_hand_worked_requests_wait_for_loads_of_those_before():
    """Room of 500 for items: five of them. The first loads 2 items (0.2 ms), and computes; 1 ms later the second has
    0.2 ms to wait, loads nothing."""
    found = run(prompts((0, "u", "ab"), (1, "u", "ab"), (9, "v", "abc")), replace(RULES, ratios=(0.5,)))
    assert found["refill_bytes"] == 300 and found["kv_misses"] == 0 and found["kv_hits"] == 1
    assert found["embedding_hits"] == 4 and found["embedding_misses"] == 3
    assert found["latency_s"]["mean"] == pytest.approx((1.2 + 1.2 + 1.1) / 3 / 1e3)


@pytest.mark.parametrize("place", [0, 4, 8])
def test_a_constant_plan_is_the_fixed_ratio_and_the_plain_lists(place: int):
    requests = request_stream(DRIFT.format(30), rate_per_s=400.0, seed=place)
    fixed = run(requests, replace(RULES, ratios=(float(RATIOS[place]),)))
    planned = run(requests, plan=np.full((1, 8), place))
    times, loaded = plain_list(requests, [place] * 8)
    assert fixed["latency_s"] == planned["latency_s"] and fixed["refill_bytes"] == planned["refill_bytes"] == loaded
    assert fixed["latency_s"]["mean"] == pytest.approx(np.mean(times) / 1e3, rel=1e-6)
    assert loaded == 100 * (fixed["embedding_misses"] + fixed["kv_misses"])


def test_no_controller_beats_the_best_of_all_plans():
    requests = request_stream(DRIFT.format(11), rate_per_s=400.0)
    adaptive = run(requests)
    ways = {plan: plain_list(requests, list(plan))[0] for plan in product(range(9), repeat=3)}
    own = tuple(adaptive["windows"][0])
    assert adaptive["latency_s"]["mean"] == pytest.approx(np.mean(ways[own]) / 1e3, rel=1e-6)
    p99 = adaptive["latency_s"]["p99"] * 1e3
    assert p99 >= min(np.quantile(times, 0.99) for times in ways.values()) - 1e-5
    assert run(requests, plan=[own])["latency_s"] == adaptive["latency_s"]
    found = best_sequence(requests, MILLISECOND, RULES, token_bytes=10.0)["latency_s"]["p99"] * 1e3
    assert found == pytest.approx(min(np.quantile(times, 0.99) for times in ways.values()), abs=1e-5)
    with pytest.raises(UsageError, match="too many sequences"):
        best_sequence(request_stream(DRIFT.format(300), rate_per_s=400.0), MILLISECOND, RULES, token_bytes=10.0)


def test_the_controller_takes_what_would_have_loaded_least():
    """Six items in turn: 600 bytes of the room hold them all, 500 none; one user needs 100."""
    requests = prompts(*[(k * 10, "u", "abc" if k % 2 else "def") for k in range(20)])
    found = run(requests)
    assert found["windows"][0] == [4, 5, 5, 5, 5] and found["to_best"] == pytest.approx(0.1 / 5)
    assert found["ratios"] == [pytest.approx(0.5), *[pytest.approx(0.6)] * 4] and found["decisions"] == 4
    slow = run(requests, replace(RULES, decide_ns=10**6))
    assert slow["windows"][0] == [4, 4, 5, 5, 5]  # 6 loads of 0.1 ms in the first window, where all is new, then 12
    assert run(requests, replace(RULES, decide_ns=2 * 10**6))["windows"][0] == [4] * 5


def test_where_loads_are_free_all_ratios_are_alike():
    requests = request_stream(DRIFT.format(30), rate_per_s=400.0)
    free = replace(RULES, link_bytes_per_s=1e15)
    every = [run(requests, replace(free, ratios=(ratio,)))["latency_s"] for ratio in (0.0, 0.4, 1.0)]
    assert every[0] == every[1] == every[2] == run(requests, free)["latency_s"]


def test_residency_goes_where_things_are():
    rows = prompts((0, "u", "abc"), (0, "v", "def"), (10, "v", "def"), (20, "u", "abc"), (30, "v", "def"))
    there, least = (run(rows, replace(RULES, ratios=(0.5,)), replicas=2, router=r) for r in ("residency", "least"))
    assert there["refill_bytes"] == 600 and there["kv_misses"] == 0
    assert least["refill_bytes"] > 600  # the first of two that are free


def test_words_and_what_is_refused():
    said = split_rules("0.3 room=2GB embedding=64KB every=8 decide=10us link=25GB/s")
    assert (said.ratios, said.room_bytes, said.every, said.decide_ns) == ((0.3,), 2 * 10**9, 8, 10_000)
    assert split_rules("adaptive").ratios == () and len(split_rules("0.1..0.9").ratios) == 9
    for words, why in (("2", "column 1: `2` is more than 1"), ("room=1GB", "no ratio"), ("0.1 0.2", "column 5: "),
                       ("0.1 x=3", "column 5: unknown key"), ("0.1 every=0", "column 11: .*not positive")):  # fmt: skip
        with pytest.raises(UsageError, match=why):
            split_rules(words)
    with pytest.raises(UsageError, match="name their items"):
        run(requests_of([0], [5], [1]))
    with pytest.raises(UsageError, match="unknown router"):
        run(prompts((0, "u", "a")), router="prefix")


def test_replicas_take_turns_or_the_one_that_is_free_first() -> None:
    """The first answer takes ten passes of 1 ms, the second one. The third comes at 2 ms: in its turn it waits for the
    first until 10 ms, and a load of 0.1 ms for each item; otherwise the second replica is free."""
    segments = [[["u", 10], ["a", 2, 0]], [["v", 10], ["b", 2, 0]], [["w", 10], ["c", 2, 0]]]
    requests = requests_of([0, 0, 2_000_000], [12, 12, 12], [10, 1, 1], segments=segments)
    turn, least = (run(requests, replicas=2, router=name)["latency_s"] for name in ("turn", "least"))
    assert (turn["mean"], least["mean"]) == pytest.approx(((10.1 + 1.1 + 9.2) / 3e3, (10.1 + 1.1 + 1.1) / 3e3))


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Nine ratios in turn, which are not compared with one another; one ratio, which is, on two replicas."""
    asked = ["serve", "split", "gpt2", "--system", "dgx-a100", "--rate", "20"]
    asked += ["--requests", "recommend:requests=12,users=4,items=30,listed=4,user_tokens=20,item_tokens=8,output=2"]
    assert main([*asked, "--split", "0.1..0.9 room=100MB link=25GB/s", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["ratios"]
    assert [row["ratio"] for row in rows] == pytest.approx([0.1 * k for k in range(1, 10)])
    assert [row["to_best"] for row in rows] == [None] * 9
    assert main([*asked, "--split", "0.3 room=100MB link=25GB/s", "--replicas", "2", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["ratio"] == pytest.approx(0.3) and one["to_best"] is not None and len(one["windows"]) == 2


def test_the_room_is_what_weights_leave_of_the_device() -> None:
    """An A100 of 80 GB: GPT-2 takes 0.25 GB, an engine takes 90% to 95% of the memory, and the link is the device's."""
    given = {"model": "gpt2", "system": "dgx-a100", "requests": "recommend:", "rate": "2", "split": "0.3"}
    serving = split_serving(ask(ServeSplit, given))
    rules = serving._on_device(serving.replicas.open())
    assert 0.85 * 80e9 < rules.room_bytes < 0.96 * 80e9
    assert rules.link_bytes_per_s == open_system("dgx-a100").device.host_link.read_bytes_per_s  # type: ignore[union-attr]


def test_a_row_for_a_reader() -> None:
    figures = {"ratio": 0.25, "latency_s": {"p50": 0.0123, "p99": 0.5}, "within_limits": 0.875, "embedding_hits": 3,
               "embedding_misses": 1, "kv_hits": 0, "kv_misses": 0, "refill_bytes": 2_345_678_901,
               "ratios": [0.5] * 20}  # fmt: skip
    assert readable(SplitServed([figures])) == [
        {"ratio": 0.25, "latency p50 ms": 12.3, "p99 ms": 500.0, "within": "87.5%", "embeddings found": "75.0%",
         "keys found": "0.0%", "loaded GB": 2.346, "over time": " ".join(["0.50"] * 12)}
    ]  # fmt: skip
