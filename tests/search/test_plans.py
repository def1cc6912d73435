"""Searching plans of a model: the best equals brute force, bounds are below what is simulated, limits never help."""

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from etude.base.errors import EtudeError
from etude.cost.stacks import open_stack
from etude.decide.search.found import Found, frontier
from etude.decide.search.page import best_name
from etude.decide.search.plans import parse_over, search_plans, space_of
from etude.decide.search.plans.axes import layers_of_stages
from etude.decide.search.plans.candidates import _fills
from etude.decide.search.plans.tasks import task
from etude.decide.search.request import SearchRequest
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.steps import least_step_time_ns, predict
from etude.surface.cli import main

AXES: dict[str, list[Any]] = {
    "tp": [1, 2], "pp": [1, 2], "zero": [0, 1, 2, 3], "micro_batch": [1, 2], "recompute": ["none", "full"],
}  # fmt: skip
FIXED = {"gpus": 8, "global_batch": 8, "seq": 512}


def by_hand(axes: dict[str, list[Any]], fixed: dict[str, Any], limit: float) -> list[dict[str, Any]]:
    """Every combination that is a plan and fits, one after the other."""
    model, system, stack, rows = open_model("gpt2"), open_system("dgx-h100"), open_stack("default"), []
    for values in product(*axes.values()):
        at = dict(zip(axes, values, strict=True))
        try:
            found = predict(model, Plan.from_dict({**fixed, **at}), system, stack=stack, check=False)
        except EtudeError:
            continue
        memory = found.generated.memory_peak_bytes
        if memory <= limit:
            rows.append({**at, "step_time_ns": found.step_time_ns, "memory_peak_bytes": memory})
    return rows


@pytest.fixture(scope="module")
def every() -> list[dict[str, Any]]:
    return by_hand(AXES, FIXED, 80e9)


def searched(axes: Any = AXES, **more: Any) -> Any:
    asked = SearchRequest(**{k: more.pop(k) for k in ("workers", "out", "method", "seed") if k in more})
    return search_plans(space_of(model="gpt2", system="dgx-h100", fixed=FIXED, over=axes, **more), asked)


def test_the_best_is_that_of_brute_force(every: list[dict[str, Any]]):
    found = searched()
    assert found.best["step_time_ns"] == min(row["step_time_ns"] for row in every)
    assert found.tried + sum(found.pruned.values()) == found.space == 64
    assert found.tried < len(every)  # bounds have spared some


def test_a_frontier_is_that_of_brute_force(every: list[dict[str, Any]]):
    found = searched(score=["step", "memory"])
    signs = {"step_time_ns": 1, "memory_peak_bytes": 1}
    mine, theirs = ([[row[name] for name in signs] for row in frontier(rows, signs)] for rows in (found.rows, every))
    assert mine == theirs
    assert [[row[name] for name in signs] for row in found.frontier] == mine


def test_more_room_is_never_worse(every: list[dict[str, Any]]):
    least = min(row["memory_peak_bytes"] for row in every)
    steps = []
    for limit in (least, least * 1.1, least * 1.3, least * 2, 80e9):
        best = searched(limits={"memory": limit}).best
        assert best["step_time_ns"] == min(r["step_time_ns"] for r in every if r["memory_peak_bytes"] <= limit)
        steps.append(best["step_time_ns"])
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < steps[0]


def test_one_point_is_predict(capsys: pytest.CaptureFixture[str]):
    words = ["gpt2", "--gpus", "8", "--global-batch", "8", "--system", "dgx-h100", "--json"]
    assert main(["search", *words, "--over", "tp=2,zero=3,recompute=selective:norm,activation"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["space"] == found["tried"] == 1
    assert main(["predict", *words, "--tp", "2", "--zero", "3", "--recompute", "selective:norm,activation"]) == 0
    told = json.loads(capsys.readouterr().out)
    for name in ("step_time_ns", "tokens_per_s_per_gpu", "mfu", "memory_peak_bytes"):
        assert found["best"][name] == told[name]
    assert main(["predict", "gpt2", "--system", "dgx-h100", "--json", *found["best"]["flags"].split()]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_ns"] == told["step_time_ns"]


BOUNDED = [
    ("gpt2", 8, {"tp": 2, "zero": 1}),
    ("gpt2", 8, {"pp": 2, "schedule": "interleaved:2"}),
    ("gpt2", 8, {"pp": 4, "schedule": "zb1p", "zero": 2}),
    ("gpt2", 8, {"pp": 4, "schedule": "zbv", "zero": 3}),
    ("gpt2", 8, {"pp": 4, "schedule": "dualpipe", "micro_batch": 1}),
    ("gpt2", 8, {"pp": 2, "schedule": "gpipe", "recompute": "full"}),
    ("gpt2", 8, {"cp": 2, "tp": 2}),
    ("gpt2", 8, {"tp": 4, "tp_chunks": 4}),
    ("gpt2", 8, {"zero": 3, "prefetch": 2, "steps": 2}),
    ("gpt2", 8, {"pp": 2, "steps": 3, "clip": False}),
    ("gpt2", 8, {"zero": 1, "overlap_params": False, "overlap_grads": False}),
    ("gpt2", 16, {"zero": 3, "dp_shard": 8}),
    ("gpt2", 16, {"order": "tp-cp-pp-dp", "pp": 2, "tp": 2}),
    ("gpt2", 8, {"host_ns": "10us", "step_overhead": "1ms"}),
    ("gpt2", 8, {"train": "lora:16", "zero": 2}),
    ("gpt2", 8, {"precision": "fp8", "zero": 3}),
    ("gpt2", 8, {"optimizer": "muon"}),
    ("mixtral-8x7b", 8, {"ep": 4, "tp": 2, "zero": 1}),
    ("mixtral-8x7b", 8, {"ep": 8, "zero": 3, "moe_skew": 1.5}),
    ("mixtral-8x7b", 8, {"ep": 4, "tp": 2, "etp": 2, "pp": 1}),
    ("dlrm-small", 8, {}),
    ("resnet-50", 8, {"zero": 1}),
    ("t5-base", 8, {"tp": 2, "pp": 2}),
]


@pytest.mark.parametrize(("name", "gpus", "given"), BOUNDED, ids=str)
@pytest.mark.parametrize("network", ["analytic", "flow"])
def test_a_bound_is_below_what_is_simulated(name: str, gpus: int, given: dict[str, Any], network: str):
    if network == "flow" and name != "gpt2":
        pytest.skip("links: one model is enough")
    plan = Plan.from_dict({"gpus": gpus, "global_batch": 2 * gpus, "seq": 256 if name[0] in "gmt" else 0, **given})
    model, system, stack = open_model(name), open_system("dgx-h100"), open_stack("default")
    options = {} if network == "analytic" else {"network": network}
    least = least_step_time_ns(model, plan, system, stack=stack, network=network)
    found = predict(model, plan, system, stack=stack, check=False, **options).step_time_ns
    assert 0.3 * found < least <= found


def test_axes_as_text():
    assert parse_over("tp=1|2|4,zero, micro-batch") == {"tp": [1, 2, 4], "zero": None, "micro_batch": None}
    assert parse_over("recompute=none|selective:norm,activation,pp") == {
        "recompute": ["none", "selective:norm,activation"], "pp": None,
    }  # fmt: skip
    assert parse_over("") == {}


def test_uneven_stages_and_systems_are_axes():
    over = {"pp": [2, 4], "stages": ["even", "last-1"], "system": ["dgx-h100", "dgx-a100"]}
    found = searched(over, score=["cost", "step"], price={"dgx-h100": 2.0, "dgx-a100": 1.0})
    assert found.tried + sum(found.pruned.values()) == found.space == 8
    assert {row["stages"] for row in found.rows} <= {"", "7,5", "3,3,4,2"}
    best = found.best
    assert best["cost_usd"] == pytest.approx({"dgx-h100": 2.0, "dgx-a100": 1.0}[best["system"]] * 8
                                             * best["step_time_ns"] / 3.6e12)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gpt2", "--over", "nothing"], "unknown axis `nothing`"),
        (["gpt2", "--over", "tp=x"], "is not a count"),
        (["gpt2", "--over", "bucket"], "no usual values"),
        (["gpt2", "--over", "tp=", "--gpus", "8"], "--over: column 4: `tp=`: axis `tp` has no values"),
        (["gpt2", "--over", "tp,tp"], "twice"),
        (["gpt2", "--over", "tp", "--tp", "2"], "also given"),
        (["gpt2", "--over", "stages=some,pp=2", "--gpus", "8"], "no plan is left"),
        (["gpt2", "--score", "speed"], "unknown score `speed`"),
        (["gpt2", "--score", "cost"], "price"),
        (["gpt2", "--limit", "memory"], "is not KEY=VALUE"),
        (["gpt2", "--limit", "memory=much"], "much"),
        (["gpt2", "--limit", "speed=1"], "unknown limit `speed`"),
        (["gpt2", "--limit", "memory=1kB"], "no plan is left"),
        (["gpt2", "--network", "none"], "network `none`"),
        (["gpt2", "--set", "a=b"], "--set"),
        (["gpt2", "--method", "dp"], "method `dp`"),
        (["gpt2", "--again", "every=10s"], "--again"),
        (["nothing-at-all"], "nothing-at-all"),
        ([], "neither a model nor a space"),
    ],
)
def test_what_is_wrong_is_told(words: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(["search", *words, "--system", "dgx-h100"]) == 2
    assert told in capsys.readouterr().err


def test_a_file_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "space.yaml").write_text(
        "search: plans\nmodel: gpt2\nsystem: dgx-h100\ngpus: 8\n"
        "plan: {global_batch: 8}\nover: {tp: [1, 2], zero: usual}\n"
    )
    assert main(["search", str(tmp_path / "space.yaml"), "--json"]) == 0
    one = capsys.readouterr().out
    words = ["gpt2", "--system", "dgx-h100", "--gpus", "8", "--global-batch", "8", "--over", "tp=1|2,zero", "--json"]
    assert main(["search", *words]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(one)
    assert main(["search", str(tmp_path / "space.yaml"), "--gpus", "4"]) == 2
    assert "--gpus is not read by `etude search space`" in capsys.readouterr().err


def test_the_same_answer_with_any_number_of_workers_and_from_where_it_was_cut_off(tmp_path: Path):
    axes = {"tp": [1, 2], "zero": [0, 1, 2, 3], "micro_batch": [1, 2]}
    one = searched(axes, out=tmp_path / "one")
    two = searched(axes, workers=2, out=tmp_path / "two")
    assert json.dumps(one.record()) == json.dumps(two.record())
    assert (tmp_path / "one" / "results.parquet").read_bytes() == (tmp_path / "two" / "results.parquet").read_bytes()
    before = (tmp_path / "one" / "results.parquet").stat().st_mtime_ns
    assert json.dumps(searched(axes, out=tmp_path / "one").record()) == json.dumps(one.record())
    assert (tmp_path / "one" / "results.parquet").stat().st_mtime_ns >= before


def test_what_was_answered_is_not_asked_again(tmp_path: Path):
    from etude.decide.search.crew import crew
    from etude.decide.search.plans.tasks import shared_of, task

    space = space_of(model="gpt2", system="dgx-h100", fixed=FIXED, over={"tp": [1]})
    point = {"what": "bound", "system": "dgx-h100", "plan": json.dumps(FIXED)}
    ran = []
    for _ in range(2):
        with crew(task, shared_of(space), SearchRequest(out=tmp_path)) as workers:
            workers.ask([point])
            ran.append(workers.ran)
    assert ran == [1, 0]


def test_weights_alone_are_never_more_than_the_peak():
    from etude.make.generate.train import plan_memory

    model = open_model("gpt2")
    for zero, micro, recompute, schedule in product(range(4), (1, 4), ("none", "full"), ("1f1b", "zbv")):
        plan = Plan.from_dict({"gpus": 8, "global_batch": 32, "pp": 2, "zero": zero, "micro_batch": micro,
                               "recompute": recompute, "schedule": schedule})  # fmt: skip
        static = max(m.static_bytes for m in plan_memory(model, plan.replace(micro_batch=1, recompute="none")))
        assert static <= max(m.peak_bytes for m in plan_memory(model, plan))


def test_a_page_has_the_answer_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["gpt2", "--gpus", "8", "--system", "dgx-h100", "--over", "tp=1|2|3,zero", "--score", "step,memory"]
    assert main(["search", *words, "-o", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "out" / "found.json").read_text()) == found
    text = (tmp_path / "out" / "index.html").read_text()
    for part in ("Why the best is best", "Frontier", "Left out", found["best"]["flags"]):
        assert part in text
    assert len(found["breakdown"]) == 3
    for row in found["breakdown"]:
        parts = sum(row[name] for name in ("compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns"))
        assert parts == pytest.approx(row["span_ns"], rel=1e-9)


def test_what_a_quick_look_leaves_out_is_not_a_plan():
    draw = random.Random(3)
    left_out = 0
    for _ in range(3000):
        at = {name: draw.choice([1, 2, 3, 4, 8]) for name in ("tp", "cp", "pp", "ep", "etp", "micro_batch")}
        at |= {"gpus": draw.choice([8, 16, 48]), "global_batch": draw.choice([0, 12, 16, 64])}
        at |= {"zero": draw.choice([0, 1, 3]), "dp_shard": draw.choice([0, 0, 2])}
        if not _fills(at):
            left_out += 1
            with pytest.raises(EtudeError):
                Plan.from_dict(at)
    assert 0 < left_out < 3000


def test_a_candidate_is_called_by_what_differs() -> None:
    """`micro_batch` is the same in both; tp is always said."""
    rows = [{"tp": 1, "zero": 0, "micro_batch": 2, "step": 1.0}, {"tp": 1, "zero": 3, "micro_batch": 2, "step": 2.0}]
    found = Found(best=rows[0], frontier=rows, tried=2, rows=rows, more={"axes": ["tp", "zero", "micro_batch"]})
    assert best_name(found, rows[1]) == "tp 1, zero 3"
    one = Found(best=rows[0], frontier=rows[:1], tried=1, more={"axes": ["zero"]})
    assert best_name(one, rows[0]) == "the only one"


def test_layers_of_stages_by_hand() -> None:
    """Of 32 layers; the last stage has one or two less than its part, the others share the rest, later ones more."""
    model = open_model("llama3-8b")
    given = [("last-1", 2, "1f1b"), ("last-2", 2, "1f1b"), ("last-1", 4, "1f1b"), ("last-1", 2, "interleaved:2")]
    wanted = [[17, 15], [18, 14], [8, 8, 9, 7], [8, 8, 9, 7]]
    assert [layers_of_stages(value, model, pp, schedule) for value, pp, schedule in given] == wanted
    assert layers_of_stages("last-1", model, 1, "1f1b") == layers_of_stages("even", model, 4, "1f1b") == []
    assert layers_of_stages("20,12", model, 2, "1f1b") == [20, 12]


@pytest.mark.parametrize("missing", ["model", "system", "gpus"])
def test_a_file_names_a_model_a_system_and_gpus(
    missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {"search": "plans", "model": "gpt2", "system": "dgx-h100", "gpus": 2, "over": {"tp": [1]}}
    (tmp_path / "s.yaml").write_text(json.dumps({key: value for key, value in keys.items() if key != missing}))
    assert main(["search", str(tmp_path / "s.yaml")]) == 2
    assert f"s.yaml: `{missing}` is needed" in capsys.readouterr().err


def test_a_bound_is_worked_out_for_plans_that_fit() -> None:
    """GPT-2 holds more than a byte and less than a terabyte; without a limit its bytes are not asked for."""

    def known(what: str, most: float) -> set[str]:
        how: dict[str, Any] = {"model": "gpt2", "system": "dgx-h100", "stack": "", "recipe": True, "seal": ""}
        plan = json.dumps({"gpus": 2, "global_batch": 2})
        return set(task(what=what, plan=plan, network="analytic", energy=False, most=most, **how))

    assert [known("look", most) for most in (0, 1, 1e12)] == [{"ns"}, {"bytes"}, {"bytes", "ns"}]
    assert [known("closer", most) for most in (0, 1, 1e12)] == [{"bytes", "ns"}, {"bytes"}, {"bytes", "ns"}]
    assert known("memory", 0) == {"bytes"} and known("alone", 1) == {"ns"}


def test_a_plan_has_the_range_of_its_step_and_its_price_that_of_the_plan():
    """As `etude predict` has it of the same plan; a price follows its step."""
    space = space_of(model="gpt2", system="dgx-h100", fixed={"gpus": 2, "tp": 1, "pp": 1}, over={}, price=3.6)
    best = search_plans(space, SearchRequest()).best
    assert best["step_time_low_ns"] < best["step_time_ns"] < best["step_time_high_ns"]
    assert "held-out rows" in best["step_basis"]
    for end in ("_low", "_high"):
        assert best[f"cost_usd{end}"] == pytest.approx(2 * 3.6 * best[f"step_time{end}_ns"] / 3.6e12)
