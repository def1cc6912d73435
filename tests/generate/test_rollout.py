"""Rollouts: tokens made for a trainer and weights that come back, by hand and element by element."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.cost.stacks import open_stack
from etude.machine import open_system
from etude.make.generate.model.open import open_model
from etude.make.generate.plan import Plan
from etude.make.generate.ranks import RankGrid
from etude.make.generate.sections.job import Sectioned, generate_sections
from etude.make.generate.sections.spec import sections_of
from etude.make.generate.serving import Serving, serve
from etude.make.generate.train.job import generate
from etude.model.check.whole import check
from etude.model.diff import diff
from etude.model.job import Job
from etude.model.schema import Kind
from etude.run.simulate.run import simulate
from etude.steps.sections import predict_sections

DGX = open_system("dgx-h100")
SHAPE = {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 4, "head_size": 16, "ffn": 128, "vocab": 512, "gated": True}
EXPERTS = {"experts": 8, "top_k": 2, "expert_ffn": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, more in (("plain", {}), ("tied", {"tied": True}), ("moe", EXPERTS), ("wide", {"ffn": 256})):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(SHAPE | more))
    return folder


TOKENS = {"from": "rollout", "to": "trainer", "carries": "tokens"}
WEIGHTS = {"from": "trainer", "to": "rollout", "carries": "weights"}


def rl(folder: Path, *borders: dict[str, Any], model: str = "plain", **changes: Any) -> dict[str, Any]:
    path = str(folder / f"{model}.yaml")
    rollout = {"model": path, "mode": "rollout", "gpus": 4, "prompt": 16, "output": "8", "plan": {"tp": 2}}
    trainer = {"model": path, "gpus": 4, "plan": {"seq": 32, "tp": 2, "micro_batch": 2}}
    sections = {"rollout": rollout | changes.get("rollout", {}), "trainer": trainer | changes.get("trainer", {})}
    return {"batch": 8, "sections": sections, "borders": list(borders)}


def made(given: dict[str, Any]) -> Sectioned:
    return generate_sections(sections_of(given))


def took(job: Job) -> int:
    return simulate(job, DGX.for_ranks(len(job))).makespan_ns


def test_a_rollout_alone_is_the_served_job(folder: Path):
    given = rl(folder)
    del given["sections"]["trainer"]
    found = made(given)
    served = serve(open_model(folder / "plain.yaml"), Plan(gpus=4, tp=2), Serving(prefill=16, decode=7, batch=4))
    assert diff(found.job, served.job) is None
    assert found.memory_peak_bytes == served.memory_peak_bytes


def test_operations_by_hand(folder: Path):
    """8 prompts of 16 tokens and 7 more tokens each go through the layers, 8 tokens of each through the head; the k-th
    token sees k keys."""
    layer = 64 * 192 + 64 * 64 + 64 * 256 + 128 * 64
    pairs = sum(range(1, 24))
    rollout = made(rl(folder, TOKENS)).sections[0]
    assert rollout.model_flops == 8 * (2 * 23 * 4 * layer + 2 * 8 * 64 * 512 + 4 * 4 * 64 * pairs)


def test_side_by_side_and_one_after_the_other(folder: Path):
    """Without borders the step is the longer of both, the trainer one step behind; with tokens it is their sum, and a
    little for these; with weights what the slowest rank receives comes on top."""
    alone = [took(s.found.job) for s in made(rl(folder)).sections]
    assert took(made(rl(folder)).job) == max(alone)
    behind = took(made(rl(folder, TOKENS)).job)
    assert sum(alone) < behind < sum(alone) + 100_000
    assert took(made(rl(folder, TOKENS, WEIGHTS)).job) > behind
    assert took(made(rl(folder, WEIGHTS)).job) < behind


def test_tokens_of_a_sample_come_once_to_each_rank_that_embeds_them(folder: Path):
    """8 samples of 24 numbers of 8 bytes; of two tensor-parallel ranks each looks all of them up."""
    found = made(rl(folder, TOKENS))
    assert found.border_bytes == {"rollout-trainer": (8 * 24 * 8 * 2, 0)}
    long = made(rl(folder, TOKENS, rollout={"output": "4:0.5,9:0.5"}, trainer={"plan": {"seq": 32}}))
    assert long.border_bytes == {"rollout-trainer": (8 * 25 * 8, 0)}


def test_training_begins_with_the_samples_that_are_done(folder: Path):
    """Two instances, answers of 2 or 60 tokens: what is short is trained on while the long ones are made."""
    given = rl(folder, TOKENS, rollout={"output": "2:0.5,60:0.5"}, trainer={"plan": {"seq": 128}})
    found = made(given)
    assert list(check(found.job)) == []
    run = simulate(found.job, DGX.for_ranks(8))
    begins = min(run.timing.start_ns[run.timing.block_of[r]][_compute(found.job, r)].min() for r in range(4, 8))
    ends = max(run.timing.end_ns[run.timing.block_of[r]].max() for r in range(4))
    assert begins < ends / 2
    alone = [took(s.found.job) for s in found.sections]
    assert max(alone) < run.makespan_ns < sum(alone) + 100_000


def _compute(job: Job, rank: int) -> Any:
    return job.trace(rank).kind == int(Kind.COMP)


# -- weights, element by element ---------------------------------------------------------------------------------------


NUMBERS: dict[str, int] = {}
"""Of matrices, as they are first named."""


def weights_of(plan: Plan, rank: int, *, tied: bool, experts: bool, sharded: bool) -> NDArray[np.int64]:
    """Elements that a rank has, each a number of its own, by cutting lists: matrices in tensor-parallel parts, norms
    whole, experts by numbers; of sharded ones each copy has a part."""
    at = {axis: int(place[rank]) for axis, place in RankGrid.of(plan).at.items()}
    found: list[NDArray[np.int64]] = []

    def has(name: str, count: int, part: int, parts: int, shard: int, shards: int) -> None:
        each = NUMBERS.setdefault(name, len(NUMBERS)) * 2**16 + np.arange(count)
        n = count // parts
        mine = each[part * n : (part + 1) * n]
        cut = [round(k * len(mine) / shards) for k in range(shards + 1)] if sharded else [0, len(mine)]
        found.append(mine[cut[shard] : cut[shard + 1]] if sharded else mine)

    copy, copies = at["dp"] * plan.cp + at["cp"], plan.dp * plan.cp
    dense = at["tp"], plan.tp, copy, copies
    whole = 0, 1, copy, copies
    per = 4 // plan.pp
    if at["pp"] == 0 or (tied and at["pp"] == plan.pp - 1 and not sharded):
        has("embedding", 512 * 64, *dense)
    for layer in range(at["pp"] * per, (at["pp"] + 1) * per):
        has(f"{layer}.qkv", 64 * 192, *dense)
        has(f"{layer}.out", 64 * 64, *dense)
        has(f"{layer}.norms", 2 * 64, *whole)
        if experts:
            has(f"{layer}.router", 64 * 8, *whole)
            spread = at["ep"] * plan.etp + at["etp"], plan.ep * plan.etp, at["edp"], plan.expert_replicas
            has(f"{layer}.up", 8 * 64 * 64, *spread)
            has(f"{layer}.down", 8 * 32 * 64, *spread)
        else:
            has(f"{layer}.up", 64 * 256, *dense)
            has(f"{layer}.down", 128 * 64, *dense)
    if at["pp"] == plan.pp - 1:
        has("norm", 64, *whole)
        if not tied:
            has("head", 512 * 64, *dense)
    return np.concatenate(found)


CASES = [
    ("plain", {"tp": 2}, {"tp": 2}),
    ("plain", {"tp": 4}, {"tp": 1}),
    ("plain", {"tp": 1}, {"zero": 3}),
    ("plain", {"tp": 4}, {"zero": 1, "tp": 2}),
    ("plain", {"tp": 2, "pp": 2}, {"pp": 2, "zero": 2}),
    ("plain", {"tp": 2}, {"pp": 4, "schedule": "interleaved:1"}),
    ("tied", {"tp": 1, "pp": 2}, {"tp": 4}),
    ("moe", {"tp": 2, "ep": 2}, {"ep": 4, "zero": 1}),
]


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize(("model", "serving", "training"), CASES)
def test_weights_come_once_to_who_needs_and_does_not_hold_them(
    folder: Path, model: str, serving: dict[str, Any], training: dict[str, Any], shares: bool
):
    own = {"shares": "trainer", "gpus": 0} if shares else {}
    plan = {"seq": 32, "micro_batch": 2, "global_batch": 8}
    given = rl(
        folder,
        TOKENS,
        WEIGHTS,
        model=model,
        rollout={"plan": serving, **own},
        trainer={"plan": {"seq": 32, **training}},
    )
    found = made(given)
    assert list(check(found.job)) == []
    assert took(found.job) > 0
    a, b = Plan.from_dict({**plan, **training, "gpus": 4}), Plan.from_dict({**serving, "gpus": 4})
    facts = {"tied": model == "tied", "experts": model == "moe"}
    sharded = a.zero > 0
    holds = [weights_of(a, r, sharded=sharded, **facts) for r in range(4)]
    needs = [weights_of(b, r, sharded=False, **facts) for r in range(4)]
    got, held = received(found.job), np.concatenate(holds)
    for rank, wanted in enumerate(needs):
        missing = wanted[~np.isin(wanted, holds[rank], kind="table")] if shares else wanted
        assert np.isin(missing, held, kind="table").all() and np.bincount(missing, minlength=1).max() <= 1
        assert got.get(rank, 0) == pytest.approx(2 * len(missing), abs=2 * 40)  # parts of shards are rounded up
    assert set(got) <= set(range(4))
    assert found.border_bytes["trainer-rollout"] == (sum(got.values()), 0)


def received(job: Job) -> dict[int, int]:
    """Bytes of weights that each rank gets."""
    found: dict[int, int] = {}
    for rank in job.ranks.tolist():
        trace = job.trace(rank)
        codes, words = trace.coded("module")
        mine = np.array([w == "border.trainer-rollout" for w in words] + [False])[codes]
        mine &= trace.kind == int(Kind.RECV)
        if mine.any():
            found[rank] = int(trace.in_bytes[mine].sum())
    return found


# -- what cannot be ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("borders", "changes", "told"),
    [
        ([{**TOKENS, "carries": "hidden"}], {}, "a rollout sends `tokens` and receives `weights`"),
        ([{**WEIGHTS, "carries": "logits"}], {}, "a rollout sends `tokens` and receives `weights`"),
        ([WEIGHTS], {"trainer": {"mode": "lora:4"}}, "does not train all of its weights"),
        ([], {"rollout": {"output": ""}}, "a rollout needs its numbers"),
        ([], {"trainer": {"prompt": 4}}, "apply only to a rollout"),
        ([], {"rollout": {"serving": {"batch": 4}}}, "`batch` is set by the section"),
        ([], {"rollout": {"serving": {"speculate": 4}}}, "handles both prompts and outputs"),
        ([], {"rollout": {"plan": {"zero": 3}}}, "--zero applies only to training"),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, borders: list[Any], changes: dict[str, Any], told: str):
    with pytest.raises(UsageError) as refused:
        made(rl(folder, *borders, **changes))
    assert told in str(refused.value)


def test_weights_of_another_model_are_refused(folder: Path):
    with pytest.raises(UsageError, match="do not fit"):
        made(rl(folder, WEIGHTS, trainer={"model": str(folder / "wide.yaml")}))
    with pytest.raises(UsageError, match="host's memory"):
        made(rl(folder, WEIGHTS, trainer={"plan": {"seq": 32, "pp": 2, "schedule": "roundrobin"}}))


def test_the_trainer_is_what_it_was(folder: Path):
    plan = {"seq": 32, "tp": 2, "micro_batch": 2, "gpus": 4, "global_batch": 8}
    alone = generate(open_model(folder / "plain.yaml"), Plan.from_dict(plan))
    assert diff(made(rl(folder, TOKENS, WEIGHTS)).sections[1].found.job, alone.job) is None


def test_a_stack_is_of_training_steps(folder: Path):
    given = sections_of(rl(folder, TOKENS))
    assert (
        predict_sections(given, DGX).step_time_ns == predict_sections(given, DGX, stack=open_stack("none")).step_time_ns
    )
    with pytest.raises(UsageError, match="generates tokens"):
        predict_sections(given, DGX, stack=open_stack("default"))
