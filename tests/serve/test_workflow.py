"""Workflows: sums and critical paths worked out by hand, branches and loops by count, hooks, and what is refused."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from etude.base.errors import UsageError
from etude.surface.cli import main
from etude.world.clock import run_alone
from etude.world.serve import Engine, serve
from etude.world.serve import state as of
from etude.world.serve.energy import UNKNOWN
from etude.world.serve.requests import requests_of
from etude.world.serve.serving import Group
from etude.world.serve.steps import step_cost
from etude.world.serve.wire import wire_of
from etude.world.serve.workflow import open_workflow, run_workflow, session_table, task_table, workflow_summary
from etude.world.serve.workflow.pools import Deployed, split_replicas
from etude.world.serve.workflow.run import WorkflowRun, workflow_loop
from etude.world.serve.workflow.sessions import unrolled
from etude.world.serve.workflow.spec import workflow_of

BY_TOKENS = step_cost(tokens=[0, 1000], layers_ns=[100.0, 10100.0])  # 100 + 10 a token


def flow(tasks: Mapping[str, Any], **more: Any):
    return workflow_of({"tasks": tasks, "sessions": 1, **more}, "flow.yaml")


def tool(seconds: float, after: Any = (), **more: Any) -> dict[str, Any]:
    return {"tool": "api", "time": f"{round(seconds * 1e9)}ns", "after": list(after), **more}


def on(words: str = "none", replicas: int = 1, **more: Any) -> Deployed:
    engine = Engine(cache=words, async_scheduling=False, **more)
    return Deployed(cost=BY_TOKENS, engine=engine, replicas=replicas, energy=UNKNOWN, caching=engine.caching)


def latency(ran: WorkflowRun) -> list[float]:
    return session_table(ran)["latency_s"].to_pylist()


WIDE = {"a": tool(1), "b": tool(2), "c": tool(4), "end": tool(0.5, ["a", "b", "c"])}


def test_programs_take_the_sum_and_data_the_critical_path():
    """1 + 2 + 4 + 0.5 s one after the other; side by side the longest of three, and the end."""
    program, data = (run_workflow(flow(WIDE), {}, order=order) for order in ("program", "data"))
    assert latency(program) == pytest.approx([7.5]) and latency(data) == pytest.approx([4.5])
    said = workflow_summary(data)
    assert said["sum_s"]["mean"] == pytest.approx(7.5) and said["critical_path_s"]["mean"] == pytest.approx(4.5)
    assert said["bound"] == pytest.approx(7.5 / 4.5)


@pytest.mark.parametrize(("places", "takes"), [(1, 7.5), (2, 5.5), (3, 4.5), (9, 4.5)])
def test_endpoints_bound_what_runs_side_by_side(places: int, takes: float):
    """Two places: a 0..1, b 0..2, c 1..5, then the end."""
    ran = run_workflow(flow(WIDE, endpoints={"api": places}), {})
    assert workflow_summary(ran)["latency_s"]["mean"] == pytest.approx(takes)
    assert takes >= max(4.5, 7.5 / places) - 1e-9


def test_a_chain_gains_nothing():
    chain = {"a": tool(1), "b": tool(2, ["a"]), "c": tool(3, ["b"])}
    program, data = (run_workflow(flow(chain), {}, order=order) for order in ("program", "data"))
    assert latency(program) == latency(data) == pytest.approx([6.0])


def test_effects_on_one_object_keep_their_order():
    tasks = {"a": tool(3, writes="log"), "b": tool(1, writes="log"), "c": tool(1, writes="other")}
    ran = run_workflow(flow(tasks), {})
    ends = (ran.end_ns - ran.begin_ns[0]) / 1e9
    assert ends.tolist() == pytest.approx([3, 4, 1])


def test_branches_are_taken_as_often_as_they_say_and_loops_stop():
    tasks = {
        "ask": tool(1, branch={"long": 0.25, "short": 0.5}),
        "long": tool(4, ["ask"]),
        "short": tool(2, ["ask"]),
        "end": tool(1, ["long", "short"]),
    }
    calls, _ = unrolled(flow(tasks, sessions=2000), seed=1)
    ran = {name: sum(call.task.name == name for call in calls) for name in tasks}
    assert ran["ask"] == 2000 and ran["end"] == ran["long"] + ran["short"]
    assert ran["long"] == pytest.approx(500, abs=60) and ran["short"] == pytest.approx(1000, abs=70)
    looped = flow({"try": tool(1), "see": tool(2, ["try"])}, loops=[{"of": ["try", "see"], "times": 3}])
    assert latency(run_workflow(looped, {})) == pytest.approx([9.0])
    drawn = flow({"try": tool(1)}, sessions=3000, loops=[{"of": ["try"], "stop": 0.25, "most": 50}])
    assert len(unrolled(drawn)[0]) / 3000 == pytest.approx(4, rel=0.06)  # geometric


def test_a_cascade_takes_the_first_and_as_often_as_it_escalates_the_second():
    tasks = {"small": tool(1, branch={"large": 0.3}, cost=1.0), "large": tool(5, ["small"], cost=10.0)}
    ran = run_workflow(flow(tasks, sessions=400), {}, seed=4)
    escalated = sum(call.task.name == "large" for call in ran.calls) / 400
    assert 0.2 < escalated < 0.4
    said = workflow_summary(ran)
    assert said["latency_s"]["mean"] == pytest.approx(1 + escalated * 5)
    assert said["cost"] == pytest.approx(1 + escalated * 10)


CHAT = {
    "ask": {"model": "m", "system": 128, "message": 64, "output": 3},
    "look": tool(1e-6, ["ask"], output=32),
    "more": {"model": "m", "after": "look", "follows": "ask", "message": 13, "output": 2},
}


def test_calls_are_answered_as_requests_are():
    """192 tokens in: 100 + 1920 ns, and two more tokens at 110 ns. The tool's 1 us. Then 192 + 3 + 32 + 13 tokens."""
    ran = run_workflow(flow(CHAT, models={"m": "any"}), {"m": on()})
    took = (ran.end_ns - ran.ready_ns).tolist()
    assert took == [2020 + 2 * 110, 1000, 100 + 2400 + 110]
    assert task_table(ran)["prompt"].to_pylist() == [192, 0, 240]
    cached = run_workflow(flow(CHAT, models={"m": "any"}), {"m": on("prefix")})
    assert task_table(cached)["cache_hit_tokens"].to_pylist() == [0, 0, 192]
    assert (cached.end_ns - cached.ready_ns).tolist() == [2240, 1000, 100 + 480 + 110]


def test_prompts_and_answers_apart_with_a_cache_of_prefixes():
    """The first call reads 192 tokens in 2,020 ns, sends 10 bytes of each at 1 byte/ns, 50 ns away, and writes two more
    tokens elsewhere. The second finds 192 of its 240 tokens where prompts are read, and sends all."""
    found = []
    for words in ("none", "prefix"):
        split = split_replicas(replace(on(words), token_bytes=10.0), 1, 1, 1e9, 50)
        ran = run_workflow(flow(CHAT, models={"m": "any"}), {"m": split})
        found.append((ran.end_ns - ran.ready_ns).tolist())
        assert ran.pools["m"].state.replica["passes"].tolist() == [2, 3]
    first = 2020 + 1920 + 50 + 2 * 110
    assert found == [[first, 1000, 2500 + 2400 + 50 + 110], [first, 1000, 580 + 2400 + 50 + 110]]


def test_sessions_of_one_call_are_requests_on_separate_replicas():
    """The same stream through the loop of `serve`, with its own groups of replicas."""
    chat = flow({"ask": CHAT["ask"]}, models={"m": "any"}, sessions=40, rate=2e5)
    split = split_replicas(replace(on(), token_bytes=10.0), 2, 3, 1e8, 700)
    ran = run_workflow(chat, {"m": split}, router="least", seed=3)
    groups = [Group(BY_TOKENS, 2, of.PREFILL), Group(BY_TOKENS, 3, of.DECODE)]
    alone = serve(
        requests_of(ran.ready_ns.tolist(), [192] * 40, [3] * 40), split.engine, groups, router="least",
        wire=wire_of(10.0, 1e8, 700, choose="best"), seed=3,
    )  # fmt: skip
    assert (alone.column("FINISH") - alone.column("ARRIVAL")).tolist() == (ran.end_ns - ran.ready_ns).tolist()


def test_separate_replicas_are_asked_for_in_one_line(capsys):
    given = ["serve", "workflow", "swe_agent", "--models", "gpt2,gpt2", "--system", "dgx-h100", "--cache", "prefix"]
    assert main([*given, "--disaggregate", "1:2", "--link-latency", "1ms", "--json"]) == 0
    assert '"calls"' in capsys.readouterr().out
    for more, told in (
        (["--disaggregate", "1:2", "--replicas", "2"], "--replicas cannot be combined with --disaggregate"),
        (["--disaggregate", "2"], "is not two numbers"),
        (["--link-latency", "1ms"], "--disaggregate"),
    ):
        assert main([*given, *more]) == 2
        assert told in capsys.readouterr().err


def test_work_is_the_same_wherever_it_runs():
    chat = flow(CHAT, models={"m": "any"}, sessions=30, rate=1e6)
    made = []
    for replicas, router in ((1, "least"), (3, "turn"), (3, "two"), (3, "session")):
        ran = run_workflow(chat, {"m": on(replicas=replicas)}, router=router)
        state = ran.pools["m"].state
        made.append(
            (workflow_summary(ran)["models"]["m"]["output_tokens"], len(ran.came), int(state.clock["finished"][0]))
        )
        assert (ran.end_ns < 2**60).all()
    assert made == [(150, 60, 60)] * 4


def test_affinity_and_belady_find_what_was_said():
    chat = flow(CHAT, models={"m": "any"}, sessions=40, rate=1e5)
    found = {
        words: workflow_summary(
            run_workflow(chat, {"m": on(words, replicas=2, num_gpu_blocks=60)}, router="affinity", seed=2)
        )["cache_hit_tokens"]
        for words in ("prefix", "belady")
    }
    assert 0 < found["prefix"] <= found["belady"] <= 40 * (192 + 240)


def test_two_models_take_turns():
    tasks = CHAT | {"more": CHAT["more"] | {"model": "n"}}
    ran = run_workflow(flow(tasks, models={"m": "a", "n": "b"}, sessions=20, rate=1e6), {"m": on(), "n": on()})
    for call in ran.calls:
        assert all(ran.end_ns[other] <= ran.ready_ns[call.number] for other in call.after)
    assert [len(ran.pools[name].rows) for name in ("m", "n")] == [20, 20]
    one = run_workflow(flow(CHAT, models={"m": "a"}, sessions=1), {"m": on()})
    two = run_workflow(flow(tasks, models={"m": "a", "n": "b"}, sessions=1), {"m": on(), "n": on()})
    assert one.end_ns.tolist() == two.end_ns.tolist()


WAYS = [
    {"tool": "best", "time": "5s", "cost": 8.0, "label": 0.9},
    {"tool": "cheap", "time": "1s", "cost": 1.0, "label": 0.6},
]


@pytest.mark.parametrize(
    ("choose", "budget", "label", "broken"),
    [
        ("best", {"latency": "8s"}, 0.9, 1), ("cheap", {"latency": "8s"}, 0.6, 0),
        ("within", {"latency": "8s"}, 0.6, 0),
        ("within", {"cost": 9.0}, 0.6, 0), ("within", {}, 0.9, 0), ("first", {}, 0.9, 0),
    ],
)  # fmt: skip
def test_choosing_keeps_budgets_or_labels(choose: str, budget: dict[str, Any], label: float, broken: int):
    """Two tasks one after the other, 5 s and 8 for the best each, 1 s and 1 for the cheap."""
    tasks = {"a": {"alternatives": WAYS}, "b": {"alternatives": WAYS, "after": "a"}}
    said = workflow_summary(run_workflow(flow(tasks, budget=budget), {}, choose=choose))
    assert (said["label"], said["violations"]) == (label, broken)


def test_one_alternative_leaves_nothing_to_choose():
    def never(task: Any, state: Any) -> int:
        raise AssertionError

    assert latency(run_workflow(flow(WIDE), {}, choose=never)) == pytest.approx([4.5])


def test_hooks_see_and_say_and_nonsense_is_refused():
    seen: list[Any] = []

    def spread(task: dict[str, Any], state: dict[str, Any]) -> int:
        seen.append((task["task"], [one.found_tokens for one in state["models"]["m"]]))
        return task["session"] % 2

    chat = flow(CHAT, models={"m": "any"}, sessions=4, rate=1.0)
    ran = run_workflow(chat, {"m": on("prefix", replicas=2)}, place=spread)
    assert {call.session % 2 for call, r in zip(ran.calls, ran.end_ns, strict=True)} == {0, 1}
    state = ran.pools["m"].state
    assert state.request["replica"][:8].tolist() == [ran.calls[c].session % 2 for c in ran.pools["m"].rows]
    assert ("more", [192, 128]) in seen or ("more", [128, 192]) in seen
    for bad in (lambda task, state: 2, lambda task, state: "x", lambda task, state: 1 / 0):
        with pytest.raises(UsageError, match="tasks: ask"):
            run_workflow(chat, {"m": on(replicas=2)}, place=bad)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"tasks": {"a": tool(1, ["b"]), "b": tool(1, ["a"])}}, "tasks: a: a cycle: a after b after a"),
        ({"tasks": {"a": tool(1, ["a"])}}, "a cycle: a after a"),
        ({"tasks": {"a": tool(1, ["x"])}}, "`x` is not a task"),
        ({"tasks": {}}, "no `tasks`"),
        ({"tasks": {"a": {"model": "m", "message": 4}}}, "`m` is not one of the models"),
        ({"tasks": {"a": {"model": "m"}}, "models": {"m": "x"}}, "an empty prompt"),
        ({"tasks": {"a": {"time": "1s"}}}, "either a `model` or a `tool`"),
        ({"tasks": {"a": tool(1, branch={"b": 0.5}), "b": tool(1)}}, "which is not after it"),
        ({"tasks": {"a": tool(1, branch={"b": 2}), "b": tool(1, ["a"])}}, "not a probability"),
        ({"tasks": {"a": tool(1)}, "loops": [{"of": ["a"]}]}, "either `times` or `stop`"),
        ({"tasks": {"a": tool(1), "b": tool(1, ["a"]), "c": tool(1, ["b"])}, "loops": [{"of": ["a", "c"], "times": 2}]},
         "a task outside is between"),
        ({"tasks": {"a": tool(1)}, "endpoints": {"api": 0}}, "0 calls at a time"),
        ({"tasks": {"a": tool(1, colour=3)}}, "unknown key `colour`"),
        ({"tasks": {"a": tool(1)}, "nodes": {}}, "unknown key `nodes`"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_its_place(
    given: dict[str, Any], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "flow.yaml"
    path.write_text(yaml.safe_dump(given))
    assert main(["serve", "--workflow", str(path)]) == 2
    err = capsys.readouterr().err
    assert problem in err and "flow" in err and "Traceback" not in err


def test_the_example_runs_by_its_name(capsys: pytest.CaptureFixture[str]):
    agent = open_workflow("swe_agent.yaml")
    assert list(agent.models) == ["planner", "worker"] and len(agent.loops) == 1
    ran = run_workflow(replace(agent, sessions=6), dict.fromkeys(agent.models, on("prefix")), router="affinity")
    said = workflow_summary(ran)
    assert said["bound"] > 1.0 and said["cache_hit_tokens"] > 0
    assert np.array(latency(ran)) == pytest.approx(session_table(ran)["critical_path_s"].to_numpy())
    assert main(["serve", "--workflow", "nobody"]) == 2 and "swe_agent" in capsys.readouterr().err
    assert main(["serve", "--workflow", "swe_agent", "--models", "llama3-8b"]) == 2


@pytest.mark.parametrize("output", [3, 300])
def test_the_compiled_loop_comes_back_for_answers_and_ends_of_tools_alone(output: int):
    """Two models answer at the same time. It comes back at 0 for both calls; once for each answer; when the tool after
    both ends; and to find that nothing is left. How many passes an answer takes makes no difference."""
    tasks = {
        "one": {"model": "a", "message": 64, "output": output},
        "two": {"model": "b", "message": 64, "output": 2 * output},
        "end": tool(1, ["one", "two"]),
    }
    models = {name: {"model": "gpt2"} for name in "ab"}
    loop = run_alone(workflow_loop(flow(tasks, models=models), {name: on() for name in "ab"}))
    assert loop.returns == 1 + 2 + 1 + 1
    assert all(pool.state.replica["passes"].sum() >= output for pool in loop.pools.values())
    assert latency(loop.ran)[0] > 1
