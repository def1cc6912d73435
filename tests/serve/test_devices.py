"""Calls placed on devices: a naive twin of the greedy planner, policies by hand, what is conserved, what is refused."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from etude.base.errors import UsageError
from etude.surface.cli import main
from etude.world.serve import Engine
from etude.world.serve.devices import run_placed, sessions_of
from etude.world.serve.devices.costs import OnKind
from etude.world.serve.devices.graph import NEVER, NumberedCalls
from etude.world.serve.devices.spec import devices_of
from etude.world.serve.energy import UNKNOWN
from etude.world.serve.steps import step_cost
from etude.world.serve.workflow import Workflow, run_workflow
from etude.world.serve.workflow.pools import Deployed
from etude.world.serve.workflow.spec import workflow_of

BY_TOKENS = step_cost(tokens=[0, 1000], layers_ns=[100.0, 10100.0])  # 100 + 10 a token
TWICE = step_cost(tokens=[0, 1000], layers_ns=[200.0, 20200.0])
WEIGHTS = {"m": 4000, "n": 7000}
ALL = ("roundrobin", "heft", "reuse", "future:0", "future:1", "future:3")


def costs(models: str = "mn", kinds: int = 2) -> dict[tuple[str, int], OnKind]:
    return {
        (model, k): OnKind(cost=(BY_TOKENS, TWICE)[k], weights_bytes=WEIGHTS[model], token_bytes=3)
        for model in models for k in range(kinds)
    }  # fmt: skip


def tasks_of(seed: int, shards: int = 1) -> dict[str, Any]:
    """Eight tasks that wait for some of those before, with tools among them."""
    random_, tasks = random.Random(seed), {}
    for k in range(8):
        after = sorted(random_.sample(range(k), min(k, random_.randint(0, 2))))
        task: dict[str, Any] = {"after": [f"t{a}" for a in after], "bytes": random_.choice([0, 300, 900])}
        if random_.random() < 0.2:
            task |= {"tool": "x", "time": f"{random_.randint(100, 4000)}ns"}
        else:
            models = [f"t{a}" for a in after if "model" in tasks[f"t{a}"]]
            task |= {"model": random_.choice("mn"), "message": random_.randint(1, 90), "output": random_.randint(1, 9)}
            task |= {"system": random_.choice([0, 64]), "shards": random_.randint(1, shards)}
            task["follows"] = models[:1]
        tasks[f"t{k}"] = task
    return tasks


MIXED = {
    "link": "1000MB/s",  # a byte a ns
    "devices": [
        {"name": "a", "system": "x", "count": 2, "memory": 10_000, "keep": 900, "load": "2GB/s"},
        {"name": "b", "system": "x", "memory": 12_000, "keep": 400, "load": "4GB/s"},
    ],
}
FREE = {"devices": [{"name": "a", "system": "x", "count": 2}, {"name": "b", "system": "x"}]}


def made(seed: int, devices: dict[str, Any], *, shards: int = 1, **more: Any) -> tuple[NumberedCalls, list[Workflow]]:
    given = {"tasks": tasks_of(seed, shards), "sessions": 4, "rate": 3e5, "vary": 0.4, "models": {"m": "m", "n": "n"}}
    flows = [workflow_of(given | more, "f")]
    on = devices_of(devices, "d")
    return sessions_of(flows, on, costs(kinds=len(on.kinds)), seed=seed), flows


class Naive:
    """Devices as dicts, texts as tuples; written without the arrays."""

    def __init__(self, sessions: NumberedCalls, given: dict[str, Any]) -> None:
        self.calls = sessions.calls
        self.begin = [sessions.begin_ns[s] for s in sessions.session_of]
        self.link = 1 if "link" in given else 0
        self.devices: list[dict[str, Any]] = []
        for k, kind in enumerate(given["devices"]):
            load = float(kind.get("load", "0GB/s").removesuffix("GB/s"))
            for _ in range(kind.get("count", 1)):
                self.devices.append({
                    "slow": k + 1, "room": kind.get("memory", 1e18), "keep": kind.get("keep", 0), "load": load,
                    "free": 0, "models": [], "log": [],
                })  # fmt: skip
        self.end: dict[int, int] = {}
        self.at: dict[int, int] = {}

    def copy(self) -> "Naive":
        other = object.__new__(Naive)
        other.__dict__ = self.__dict__ | {"end": dict(self.end), "at": dict(self.at)}
        other.devices = [d | {"models": list(d["models"]), "log": list(d["log"])} for d in self.devices]
        return other

    def found(self, c: int, d: dict[str, Any]) -> int:
        """Leading tokens of the prompt that calls of the last bytes of this model had, cut where segments end. A prefix
        counts from before the last call that had it."""
        call, model, bytes_after, best = self.calls[c], self.calls[c].task.ways[0].model, 0, 0
        for name, text, size in reversed(d["log"]):
            bytes_after += size
            if name is None and text == model:
                break
            if bytes_after > d["keep"]:
                break
            if name != model:
                continue
            tokens = 0
            for mine, theirs in zip(call.segments, text, strict=False):
                if mine[0] != theirs[0]:
                    break
                tokens += mine[1]
            best = max(best, min(tokens, call.prompt - 1))
        return best

    def takes(self, c: int, where: int, parts: int, now: int) -> int:
        call, d = self.calls[c], self.devices[where]
        model = call.task.ways[0].model
        begin = max(now, d["free"], max((self.end[p] for p in call.after), default=self.begin[c]))
        fetch = sum(self.calls[p].task.bytes * self.link for p in call.after if self.at.get(p) != where)
        load = -(-WEIGHTS[model] // d["load"]) if d["load"] and model not in d["models"] else 0
        new = call.prompt - self.found(c, d)
        run = d["slow"] * (100 + 10 * new + 110 * (call.output - 1))
        return int(begin + fetch + load + -(-run // parts))

    def options(self, c: int, now: int) -> tuple[int, list[int]]:
        best: tuple[int, list[int]] = (NEVER, [])
        for parts in range(1, min(self.calls[c].task.shards, len(self.devices)) + 1):
            ends = sorted((self.takes(c, d, parts, now), d) for d in range(len(self.devices)))[:parts]
            end = ends[-1][0] + self.calls[c].task.bytes * self.link * (parts - 1) // parts
            if end < best[0]:
                best = end, [d for _, d in ends]
        return best

    def put(self, c: int, where: list[int], now: int) -> int:
        call, end = self.calls[c], 0
        model = call.task.ways[0].model
        for w in where:
            d, mine = self.devices[w], self.takes(c, w, len(where), now)
            if model in d["models"]:
                d["models"].remove(model)
            while d["models"] and sum(WEIGHTS[m] for m in [*d["models"], model]) > d["room"]:
                d["log"].append((None, d["models"].pop(0), 0))
            d["models"].append(model)
            text = [*call.segments, (f"{call.name} out", call.output)]
            d["log"].append((model, text, 3 * (call.prompt + call.output) // len(where)))
            d["free"] = mine
            end = max(end, mine)
        end += call.task.bytes * self.link * (len(where) - 1) // len(where)
        self.end[c], self.at[c] = end, where[0]
        return end

    def greedy(self) -> dict[int, int]:
        """At every moment at which something is ready or ends: pairs by earliest finish; what begins now is placed."""
        ready: list[tuple[int, int]] = []
        known: set[int] = set()
        moments: set[int] = set()

        def open_() -> None:
            """Calls of which is known when they are ready; tools end by themselves."""
            found = True
            while found:
                found = False
                for call in self.calls:
                    c = call.number
                    if c in known or any(p not in self.end for p in call.after):
                        continue
                    at = max((self.end[p] for p in call.after), default=self.begin[c])
                    known.add(c)
                    moments.add(at)
                    if call.task.ways[0].tool:
                        self.end[c] = at + round(call.task.ways[0].time_ns * call.slow)
                        moments.add(self.end[c])
                        found = True
                    else:
                        ready.append((at, c))

        open_()
        while moments:
            now = min(moments)
            moments.discard(now)
            while True:
                plan = self.copy()
                waiting = sorted(one for one in ready if one[0] <= now)
                chosen = None
                while waiting and chosen is None and min(d["free"] for d in plan.devices) <= now:
                    pairs = [(*plan.options(c, now), k) for k, (_, c) in enumerate(waiting)]
                    _, where, k = min(pairs, key=lambda one: (one[0], one[2]))
                    if any(plan.devices[d]["free"] <= now for d in where):
                        chosen = waiting[k], where
                    else:
                        plan.put(waiting[k][1], where, now)
                        del waiting[k]
                if chosen is None:
                    break
                ready.remove(chosen[0])
                moments.add(self.put(chosen[0][1], chosen[1], now))
                open_()
        return self.end


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(("devices", "shards"), [(FREE, 1), (MIXED, 1), (MIXED, 3)])
def test_no_look_ahead_is_the_earliest_finish_over_the_frontier(seed: int, devices: dict[str, Any], shards: int):
    sessions, flows = made(seed, devices, shards=shards)
    ran = run_placed(sessions, flows, "future:0")
    naive = Naive(sessions, devices).greedy()
    assert ran.state.finish.tolist() == [naive[c] for c in range(len(sessions.calls))]


def test_what_the_twin_was_asked_has_everything_in_it():
    """Prefixes that are found, models that leave and come back, outputs that move, calls that are split."""
    seen = {"found": 0, "loads": 0, "fetch": 0, "split": 0}
    for seed in range(25):
        ran = run_placed(*made(seed, MIXED, shards=3), "future:0")
        fetch, _, _, found = ran.work.sum(axis=0).tolist()
        more = ran.loads - 6  # beyond one of each model on each device
        for name, value in (("found", found), ("loads", more), ("fetch", fetch), ("split", (ran.parts > 1).sum())):
            seen[name] += bool(value > 0)
    assert min(seen.values()) >= 5


def at_first(task: dict[str, Any], state: dict[str, Any]) -> int | None:
    """The greedy planner where nothing costs but running, through what a function of yours sees."""
    now = round(state["now_s"] * 1e9)
    free = [round(one["free_s"] * 1e9) for one in state["devices"]]
    calls = [state["show"](c) for c in state["waiting"]]
    while calls and min(free) <= now:
        pairs = [
            (max(free[d], now) + round(on["run_s"] * 1e9), k, d)
            for k, one in enumerate(calls) for d, on in enumerate(one["on"])
        ]  # fmt: skip
        end, k, d = min(pairs)
        if free[d] <= now:
            return d if calls[k]["call"] == task["call"] else None
        free[d] = end
        del calls[k]
    return None


@pytest.mark.parametrize("seed", range(8))
def test_a_function_of_yours_can_be_the_greedy_planner(seed: int):
    sessions, flows = made(seed, FREE)
    ends = [run_placed(sessions, flows, place).state.finish.tolist() for place in ("future:0", at_first)]
    assert ends[0] == ends[1]


@pytest.mark.parametrize("seed", range(6))
def test_one_device_without_state_makes_all_equal(seed: int):
    one = {"devices": [{"name": "a", "system": "x"}]}
    tasks = {name: task for name, task in tasks_of(seed).items() if "model" in task}
    for task in tasks.values():
        task["after"] = [other for other in task["after"] if other in tasks]
    sessions, flows = made(seed, one, tasks=tasks)
    ends = {place: int(run_placed(sessions, flows, place).state.finish.max()) for place in ALL}
    assert len(set(ends.values())) == 1
    chain = {"a": {"model": "m", "message": 9}, "b": {"model": "n", "after": "a"}, "c": {"model": "m", "after": "b"}}
    sessions, flows = made(seed, one, tasks=chain, rate=1.0)
    every = [run_placed(sessions, flows, place).state.finish.tolist() for place in ALL]
    assert all(ends == every[0] for ends in every)


@pytest.mark.parametrize("place", ALL)
@pytest.mark.parametrize("seed", range(6))
def test_nothing_begins_early_and_devices_do_one_thing_at_a_time(seed: int, place: str):
    sessions, flows = made(seed, MIXED)
    ran = run_placed(sessions, flows, place)
    g, s = sessions.graph, ran.state
    takes = ran.work[:, :3].sum(axis=1)
    begin = s.finish - takes
    for c, call in enumerate(sessions.calls):
        if g.tool_ns[c] < 0:
            assert s.finish[c] < NEVER
            assert begin[c] >= max((s.finish[p] for p in call.after), default=sessions.begin_ns[call.session])
    for d in range(ran.devices):
        mine = sorted((int(begin[c]), int(s.finish[c])) for c in np.flatnonzero(s.place == d))
        assert all(a[1] <= b[0] for a, b in pairwise(mine))
    again = run_placed(*made(seed, MIXED), place)
    assert again.state.finish.tolist() == s.finish.tolist()


def test_without_reuse_equal_devices_do_the_same_work():
    equal = {"devices": [{"name": "a", "system": "x", "count": 3}]}
    sessions, flows = made(3, equal)
    work = [run_placed(sessions, flows, place).work[:, 2].sum() for place in ALL]
    assert len(set(map(int, work))) == 1
    ends = [int(run_placed(sessions, flows, place).state.finish.max()) for place in ALL]
    first = min(sessions.begin_ns)
    assert all(end - first >= work[0] / 3 for end in ends)


def test_a_look_ahead_by_hand():
    """Two devices with room for one model. m1 (loaded in 500 ns, 200 ns of work) ends at 700 on the first, n1 (875 and
    200) at 1075 on the second. Then m2 and m3 are ready, of 1000 and 1100 ns, and 100 ns later n2, of 1000 ns. m2 runs
    on the first device until 2075. m3 would end at 2675 on the second, weights loaded there, and at 3175 behind m2:
    greedy takes the second device, and n2 ends on the first at 2075 + 875 + 1000 = 3950. With a look ahead m3 waits."""
    devices = {"devices": [{"name": "a", "system": "x", "count": 2, "memory": 7000, "load": "8GB/s"}]}
    both = {"after": ["m1", "n1"], "reads": []}
    tasks = {
        "m1": {"model": "m", "message": 10}, "n1": {"model": "n", "message": 10},
        "m2": {"model": "m", "message": 90, **both}, "m3": {"model": "m", "message": 100, **both},
        "look": {"tool": "x", "time": "100ns", "after": ["m1", "n1"]},
        "n2": {"model": "n", "message": 90, "after": "look", "reads": []},
    }  # fmt: skip
    flows = [workflow_of({"tasks": tasks, "sessions": 1, "models": {"m": "m", "n": "n"}}, "f")]
    sessions = sessions_of(flows, devices_of(devices, "d"), costs(kinds=1))

    def ends(place: str) -> dict[str, int]:
        finish = run_placed(sessions, flows, place).state.finish - sessions.begin_ns[0]
        return {call.task.name: int(end) for call, end in zip(sessions.calls, finish, strict=True)}

    assert ends("future:0") == {"m1": 700, "n1": 1075, "m2": 2075, "m3": 2675, "look": 1175, "n2": 3950}
    for horizon in (1, 2, 5):
        assert ends(f"future:{horizon}") == {"m1": 700, "n1": 1075, "m2": 2075, "m3": 3175, "look": 1175, "n2": 2175}


def test_a_call_alone_takes_what_serving_takes():
    """One call, and one that follows it and finds its prompt: 100 + 10 a new token, 110 a token out."""
    tasks = {
        "ask": {"model": "m", "system": 128, "message": 64, "output": 3},
        "more": {"model": "m", "after": "ask", "follows": "ask", "message": 13, "output": 2},
    }
    flow = workflow_of({"tasks": tasks, "sessions": 1, "models": {"m": "m"}}, "f")
    devices = devices_of({"devices": [{"name": "a", "system": "x", "keep": 10_000}]}, "d")
    sessions = sessions_of([flow], devices, costs("m", 1))
    ran = run_placed(sessions, [flow], "roundrobin")
    assert (ran.state.finish - sessions.begin_ns[0]).tolist() == [2020 + 220, 2240 + 100 + 130 + 110]
    none = devices_of({"devices": [{"name": "a", "system": "x"}]}, "d")
    plain = run_placed(sessions_of([flow], none, costs("m", 1)), [flow], "roundrobin")
    engine = Engine(cache="none", async_scheduling=False)
    on = {"m": Deployed(cost=BY_TOKENS, engine=engine, energy=UNKNOWN, caching=engine.caching)}
    assert plain.state.finish.tolist() == run_workflow(flow, on).end_ns.tolist()


def test_loads_transfers_and_splits_by_hand():
    """Weights of 4000 bytes at 2 a ns; 900 bytes to the other device at 1 a ns. A call of 100 tokens in: 1100 ns, or in
    two parts 550 each, and half of its output to the first."""
    tasks = {"a": {"model": "m", "message": 100, "bytes": 900}, "b": {"model": "m", "message": 100, "after": "a",
             "reads": [], "shards": 2, "bytes": 300}}  # fmt: skip
    flows = [workflow_of({"tasks": tasks, "sessions": 1, "models": {"m": "m"}}, "f")]
    devices = {"link": "1GB/s", "devices": [{"name": "a", "system": "x", "count": 2, "load": "2GB/s"}]}
    sessions = sessions_of(flows, devices_of(devices, "d"), costs("m", 1))
    first = sessions.begin_ns[0]

    def ends(*places: Any) -> list[int]:
        given = iter(places)
        ran = run_placed(sessions, flows, lambda task, state: next(given))
        return (ran.state.finish - first).tolist()

    assert ends(0, 0) == [3100, 4200]
    assert ends(0, 1) == [3100, 3100 + 900 + 2000 + 1100]
    assert ends(0, [0, 1]) == [3100, 3100 + 900 + 2000 + 550 + 150]


@pytest.mark.parametrize("bad", [2, -1, "x", True, [0, 0], [0, 1], [], 1.5])
def test_a_function_that_says_nonsense_is_refused(bad: Any):
    flows = [workflow_of({"tasks": {"a": {"model": "m", "message": 9}}, "models": {"m": "m"}}, "f")]
    devices = devices_of({"devices": [{"name": "a", "system": "x", "count": 2}]}, "d")
    with pytest.raises(UsageError, match="f: tasks: a"):
        run_placed(sessions_of(flows, devices, costs("m", 1)), flows, lambda task, state: bad)


FLOW = {"tasks": {"a": {"model": "m", "message": 9}}, "models": {"m": "llama3-8b"}}
ONE = {"devices": [{"name": "a", "system": "dgx-h100"}]}
TWO_WAYS = {"tasks": {"a": {"alternatives": [{"model": "m"}, {"tool": "x"}], "message": 9}}, "models": FLOW["models"]}


@pytest.mark.parametrize(
    ("flow", "devices", "words", "told"),
    [
        (FLOW, {}, [], "no `devices`"),
        (FLOW, {"devices": [{"name": "a"}]}, [], "devices[0]"),
        (FLOW, ONE | {"colour": 1}, [], "unknown key `colour`"),
        (FLOW, ONE, ["--place", "best"], "unknown placement policy `best`"),
        (FLOW, ONE, ["--place", "future:x"], "--place: column 8: `future:x`: `x` is not a count"),
        (FLOW, ONE, ["--choose", "pixie"], "--choose is not read by `etude serve devices`"),
        (FLOW, {"devices": [{"name": "a", "system": "dgx-h100", "memory": "1GB"}]}, [], "does not fit any device"),
        (TWO_WAYS, ONE, [], "alternatives cannot be placed"),
        ({"tasks": {"a": {"tool": "x"}}}, ONE, [], "nothing to place"),
    ],
)
def test_what_is_wrong_is_told(
    flow: Any, devices: Any, words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "f.yaml").write_text(yaml.safe_dump(flow))
    (tmp_path / "d.yaml").write_text(yaml.safe_dump(devices))
    given = ["serve", "--workflow", str(tmp_path / "f.yaml"), "--devices", str(tmp_path / "d.yaml"), *words]
    assert main(given) == 2
    err = capsys.readouterr().err
    assert told in err and "Traceback" not in err


def test_the_command_line_puts_policies_beside_round_robin(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import json

    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(FLOW | {"sessions": 3}))
    (tmp_path / "d.json").write_text(json.dumps(ONE))
    given = ["serve", "--workflow", str(tmp_path / "*.yaml"), "--devices", str(tmp_path / "d.json")]
    assert main([*given, "--place", "heft,future:1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert list(said["places"]) == ["roundrobin", "heft", "future:1"] and said["place"] == "future:1"
    assert said["sessions"] == 6 and said["makespan_over_roundrobin"] == pytest.approx(1, rel=1e-6)
    assert main(given) == 0
    assert "future:2" in capsys.readouterr().out
    assert main(["serve", "--devices", str(tmp_path / "d.json")]) == 2
    assert main(["serve", "--workflow", str(tmp_path / "no*.yaml"), "--devices", str(tmp_path / "d.json")]) == 2


def test_a_place_that_never_answers_is_told(tmp_path: Path):
    flows = [workflow_of(FLOW | {"models": {"m": "m"}}, "f")]
    devices = devices_of({"devices": [{"name": "a", "system": "x"}]}, "d")
    with pytest.raises(UsageError, match="is never placed"):
        run_placed(sessions_of(flows, devices, costs("m", 1)), flows, lambda task, state: None)
