"""Sections: one is the plain job, several add up; what crosses a border is counted element by element."""

from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml

from etude.base.errors import EtudeError, UsageError
from etude.machine import open_system
from etude.make.generate.model.open import open_model
from etude.make.generate.plan import Plan
from etude.make.generate.ranks import RankGrid
from etude.make.generate.sections.job import Sectioned, generate_sections
from etude.make.generate.sections.spec import open_sections, sections_of
from etude.make.generate.train.job import generate
from etude.model.check.whole import check
from etude.model.diff import diff
from etude.model.job import Job
from etude.model.schema import Kind
from etude.model.totals import totals
from etude.run.simulate.run import simulate
from random_jobs import random_sections

DGX = open_system("dgx-h100")
BIG = {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "head_size": 16, "ffn": 128, "vocab": 512, "gated": True}
SMALL = {"layers": 2, "hidden": 32, "heads": 4, "head_size": 8, "ffn": 64, "vocab": 512}
IMAGE = {"family": "vit", "layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "image": 28, "patch": 4, "classes": 10}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder, found = tmp_path_factory.mktemp("models"), {}
    for name, shape in (("big", BIG), ("small", SMALL), ("image", IMAGE)):
        found[name] = str(folder / f"{name}.yaml")
        Path(found[name]).write_text(yaml.safe_dump(shape))
    return found


def made(given: dict[str, Any], gpus: int = 0) -> Sectioned:
    return generate_sections(sections_of(given), gpus=gpus)


def distill(models: dict[str, str], **changes: Any) -> dict[str, Any]:
    teacher = {"model": models["big"], "mode": "forward", "gpus": 4, "plan": {"seq": 32, "tp": 2}}
    student = {"model": models["small"], "gpus": 2, "plan": {"seq": 32, "micro_batch": 2}}
    border = {"from": "teacher", "to": "student", "carries": "logits"}
    return {
        "batch": 8,
        "sections": {"teacher": teacher | changes.get("teacher", {}), "student": student | changes.get("student", {})},
        "borders": [border],
    }


def seeing(models: dict[str, str], **changes: Any) -> dict[str, Any]:
    image = {"model": models["image"], "shares": "text", "plan": {"micro_batch": 1}}
    text = {"model": models["big"], "gpus": 4, "plan": {"seq": 32, "tp": 2, "micro_batch": 1}}
    return {
        "batch": 8,
        "sections": {"image": image | changes.get("image", {}), "text": text | changes.get("text", {})},
        "borders": [{"from": "image", "to": "text", "tokens": 16, "width": 64}],
    }


def test_one_section_is_the_plain_job(models: dict[str, str]):
    plan = {"tp": 2, "pp": 2, "zero": 1, "seq": 32}
    found = made({"batch": 8, "sections": {"all": {"model": models["big"], "gpus": 8, "plan": plan}}})
    plain = generate(open_model(models["big"]), Plan.from_dict({**plan, "gpus": 8, "global_batch": 8}))
    assert diff(found.job, plain.job) is None
    for figure in ("flops", "params", "memory_peak_bytes", "comm_bytes_by_type"):
        assert found.summary()[figure] == plain.summary()[figure]


def sent(job: Job) -> dict[tuple[int, int], int]:
    """Bytes from rank to rank, of messages whose module is a border."""
    found: dict[tuple[int, int], int] = {}
    for rank in job.ranks.tolist():
        trace, peers = job.trace(rank), job.peer_slots(rank)
        codes, words = trace.coded("module")
        border = np.array([w.startswith("border.") for w in words] + [False])[codes]
        for row in np.flatnonzero(border & (trace.kind == int(Kind.SEND))).tolist():
            pair = rank, int(peers[trace.dst[row]])
            found[pair] = found.get(pair, 0) + int(trace.in_bytes[row])
    return found


def test_a_teacher_by_hand(models: dict[str, str]):
    """8 samples of 32 tokens, 512 logits of 2 bytes, of which each of two tensor-parallel ranks has half."""
    found = made(distill(models))
    assert found.border_bytes == {"teacher-student": (8 * 32 * 512 * 2, 0)}
    # Teacher: ranks 0, 1 and 2, 3 take samples in turn; student: ranks 4 and 5 two at a time.
    pair = 32 * 256 * 2
    assert sent(found.job) == {(a, b): 2 * pair for a in range(4) for b in (4, 5)}


def test_operations_of_sections_add_up(models: dict[str, str]):
    for given in (distill(models), seeing(models)):
        found = made(given)
        each = [totals(s.found.job)["flops"] for s in found.sections]
        assert found.summary()["flops"] == sum(each)
        assert found.model_flops == sum(s.found.model_flops for s in found.sections)
        assert found.params == sum(s.found.params for s in found.sections)


def test_a_teacher_does_a_third_of_the_products(models: dict[str, str]):
    taught, trained = made(distill(models)), made(distill(models, teacher={"mode": "train"}))
    heads, pairs, size = 4, 32 * 33 // 2, 16
    core = 8 * 4 * heads * pairs * size * 2  # a product of attention: batch, layers
    products = trained.sections[0].model_flops - 6 * core  # two forward, four backward
    assert taught.sections[0].model_flops == products // 3 + 2 * core


def test_weights_that_are_cast_again_on_the_way_back_wait_for_nobody_before(models: dict[str, str]):
    """ZeRO 3 in 8 bits: what is gathered again for the backward pass is cast again, behind the other section's turn."""
    plan = {"zero": 3, "precision": "fp8"}
    for image in ({"plan": plan}, {"shares": "", "gpus": 2, "plan": plan}):
        job = made(seeing(models, image=image)).job
        assert list(check(job)) == []
        assert simulate(job, DGX.for_ranks(len(job))).makespan_ns > 0


@pytest.mark.parametrize("seed", range(20))
def test_random_sections_are_sound_and_run(seed: int, tmp_path: Path):
    try:
        job = generate_sections(sections_of(random_sections(Random(seed), tmp_path))).job
    except UsageError:
        pytest.skip("sections that cannot be")
    assert list(check(job)) == []
    assert not simulate(job, DGX.for_ranks(len(job))).timing.partial


# -- elements, one by one ----------------------------------------------------------------------------------------


def held(plan: Plan, rank: int, batch: int, tokens: int, values: int, *, logits: bool, causal: bool) -> set[Any]:
    """(sample, token, value) that a rank has of a border, by cutting lists."""
    at = {axis: int(place[rank]) for axis, place in RankGrid.of(plan).at.items()}
    rounds = range(0, batch, plan.dp * plan.micro_batch)
    samples = [
        start + at["dp"] * plan.micro_batch + i for start in rounds for i in range(plan.micro_batch)
    ]  # fmt: skip
    order = list(range(tokens))
    if plan.cp > 1 and causal:
        n = tokens // (2 * plan.cp)
        pieces = [order[i * n : (i + 1) * n] for i in range(2 * plan.cp)]
        order = pieces[at["cp"]] + pieces[-1 - at["cp"]]
    elif plan.cp > 1:
        n = tokens // plan.cp
        order = order[at["cp"] * n : (at["cp"] + 1) * n]
    wide = list(range(values))
    if plan.tp > 1 and logits:
        n = values // plan.tp
        wide = wide[at["tp"] * n : (at["tp"] + 1) * n]
    elif plan.tp > 1 and plan.sequence_parallel:
        n = len(order) // plan.tp
        order = order[at["tp"] * n : (at["tp"] + 1) * n]
    return set(product(samples, order, wide))


PLANS = [
    {}, {"tp": 2}, {"tp": 2, "sp": False}, {"tp": 4}, {"cp": 2}, {"cp": 2, "tp": 2}, {"cp": 2, "cp_kind": "all_gather"},
    {"micro_batch": 2}, {"micro_batch": 2, "tp": 2, "sp": False}, {"order": "dp-tp-cp-pp", "tp": 2},
]  # fmt: skip


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("number", range(len(PLANS)))
def test_a_border_moves_what_is_needed_and_not_held(models: dict[str, str], number: int, shared: bool):
    first, second = PLANS[number], PLANS[(3 * number + 1) % len(PLANS)]
    given = seeing(
        models,
        image={"model": models["small"], "plan": {"seq": 16, **first}},
        text={"gpus": 4, "plan": {"seq": 32, **second}},
    )
    if not shared:
        given["sections"]["image"] |= {"shares": "", "gpus": 4}
    found = made(given)
    image, text = found.sections
    sides = []
    for section in (image, text):
        plan = section.found.plan
        cut = [held(plan, r, 8, 16, 64, logits=False, causal=plan.cp_kind == "ring") for r in range(plan.gpus)]
        sides.append({section.ranks.start + r: c for r, c in enumerate(cut)})
    for (one, other), size in zip((sides, sides[::-1]), found.border_bytes["image-text"], strict=True):
        missing = sum(len(need - one.get(rank, set())) for rank, need in other.items())
        assert size == 2 * missing


def test_bytes_of_a_border_once_each_way(models: dict[str, str]):
    """Own ranks, tokens split over all of them on both sides: each element goes over once and its gradient back."""
    image = {"model": models["small"], "shares": "", "gpus": 4, "plan": {"seq": 16, "tp": 2}}
    found = made(seeing(models, image=image))
    assert found.border_bytes == {"image-text": (8 * 16 * 64 * 2, 8 * 16 * 64 * 2)}
    assert sum(sent(found.job).values()) == 2 * 8 * 16 * 64 * 2


# -- jobs that run -----------------------------------------------------------------------------------------------


def time_of(found: Sectioned) -> int:
    assert list(check(found.job)) == []
    done = simulate(found.job, DGX.for_ranks(len(found.job)))
    assert not done.timing.partial
    return done.makespan_ns


CASES = {
    "teacher": lambda m: distill(m),
    "teacher in a pipeline": lambda m: distill(m, teacher={"plan": {"seq": 32, "pp": 2, "zero": 3}}),
    "student in a pipeline": lambda m: distill(m, student={"plan": {"seq": 32, "pp": 2, "zero": 1}}),
    "on the same ranks": lambda m: distill(m, teacher={"gpus": 0, "shares": "student", "plan": {"seq": 32}}),
    "an encoder": lambda m: seeing(m),
    "an encoder in a pipeline": lambda m: seeing(m, image={"plan": {"pp": 2}}, text={"plan": {"seq": 32, "pp": 2}}),
    "an encoder with fsdp": lambda m: seeing(m, image={"plan": {"zero": 3, "recompute": "full"}}),
    "an encoder that stays": lambda m: seeing(m, image={"mode": "forward"}),
    "a language model that stays": lambda m: seeing(m, text={"mode": "frozen", "gpus": 4}),
    "adapters": lambda m: seeing(m, text={"mode": "lora:8", "gpus": 4}),
    "an encoder of its own": lambda m: seeing(m, image={"shares": "", "gpus": 2, "plan": {}}),
    "some images": lambda m: seeing(m, image={"active": 0.4, "per_sample": 3}),
    "a host": lambda m: seeing(m, text={"plan": {"seq": 32, "host": "3us", "tp": 2}}),
}


@pytest.mark.parametrize("case", CASES)
def test_jobs_of_sections_are_sound_and_run(models: dict[str, str], case: str):
    assert time_of(made(CASES[case](models))) > 0


def test_three_sections_in_a_row(models: dict[str, str]):
    given = seeing(models)
    given["sections"] = {
        "image": {"model": models["image"], "shares": "text", "plan": {}},
        "bridge": {"model": models["small"], "gpus": 2, "mode": "lora:4", "plan": {"seq": 16}},
        "text": given["sections"]["text"],
    }
    given["borders"] = [{"from": "image", "to": "bridge", "tokens": 16}, {"from": "bridge", "to": "text"}]
    assert time_of(made(given)) > 0


# -- samples that some sections have no work for -------------------------------------------------------------------


def test_samples_without_images_send_nothing(models: dict[str, str]):
    none = made(seeing(models, image={"active": 0.0}))
    assert none.border_bytes == {"image-text": (0, 0)}
    assert none.sections[0].model_flops == 0
    half = made(seeing(models, image={"active": 0.5, "shares": "", "gpus": 2, "plan": {"micro_batch": 2}}))
    assert half.sections[0].busy_samples == 4
    there, back = half.border_bytes["image-text"]
    assert there == 4 * 16 * 64 * 2
    assert back == there


def test_samples_dealt_evenly_or_left_where_they_are(models: dict[str, str]):
    """Eight samples on four ranks, half of them active, in the order of the seed."""
    places = {}
    for deal in ("even", "own"):
        given = seeing(models, image={"active": 0.5, "deal": deal})
        places[deal] = made(given | {"seed": 1}).sections[0].slot
    active = np.flatnonzero(places["own"] >= 0)
    assert places["own"][active].tolist() == active.tolist()
    assert places["even"][active].tolist() == [0, 1, 2, 3]


def test_dealing_matters_only_where_images_are_uneven(models: dict[str, str]):
    """Four ranks, 16 samples, of which the seed gives one rank three of eight images."""

    def most(active: float, deal: str) -> tuple[int, int]:
        """Images of the fullest rank, and its operations."""
        found = made(seeing(models, image={"active": active, "deal": deal}) | {"batch": 16})
        slot = found.sections[0].slot
        work = [np.where(t.flops > 0, t.flops, 0).sum() for t in map(found.job.trace, range(4))]
        return int(np.bincount(slot[slot >= 0] % 4, minlength=4).max()), int(max(work))

    assert most(0.0, "own") == most(0.0, "even")
    assert most(1.0, "own") == most(1.0, "even")
    (own, work), (even, less) = most(0.5, "own"), most(0.5, "even")
    assert (own, even) == (3, 2)
    assert work > less


def test_inputs_dealt_one_by_one_whichever_samples_they_belong_to(models: dict[str, str]):
    """Eight samples on four ranks, half of them with images, four each: one by one four images on every rank; dealt by
    sample each rank has one sample, so all four as well; as they come a rank has the images of its own two samples."""

    def images(deal: str, **more: Any) -> tuple[list[int], Sectioned]:
        image = {"active": 0.5, "deal": deal, "per_sample": 4, **more}
        found = made(seeing(models, image=image))
        one = found.sections[0]
        return np.bincount(one.slot[one.slot >= 0] % 4, minlength=4).tolist(), found

    each, found = images("inputs")
    assert each == [4, 4, 4, 4]
    assert (found.sections[0].busy_samples, found.sections[0].busy_inputs) == (4, 16)
    assert images("even")[0] == [1, 1, 1, 1]  # samples
    # Images of samples, 2 or 12, drawn; dealt one by one no rank has two more than another.
    uneven, found = images("inputs", inputs="2:0.5,12:0.5")
    total = found.sections[0].busy_inputs
    assert sum(uneven) == total
    assert max(uneven) - min(uneven) <= 1
    whole, other = images("even", inputs="2:0.5,12:0.5")
    assert sorted(set(whole)) == [2, 12]
    assert other.sections[0].busy_inputs == total


def test_bytes_of_inputs_over_a_border_are_counted_one_by_one(models: dict[str, str]):
    """On ranks of its own every image crosses once, 4 of the 16 tokens of a sample, and its gradient back once."""
    for deal in ("inputs", "even"):
        image = {"shares": "", "gpus": 4, "per_sample": 4, "inputs": "1:0.5,6:0.5", "deal": deal}
        found = made(seeing(models, image=image) | {"gpus": 8})
        there, back = found.border_bytes["image-text"]
        assert there == found.sections[0].busy_inputs * 4 * 64 * 2
        assert back == there
        assert sum(sent(found.job).values()) == there + back
        assert list(check(found.job)) == []


# -- what cannot be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sections": {}}, "names no section"),
        ({"batch": 0}, "`batch` is not a count"),
        ({"colour": 1}, "unknown key `colour`"),
        ({"borders": [{"from": "nobody", "to": "student"}]}, "names `nobody`"),
        ({"borders": [{"from": "student", "to": "teacher"}]}, "goes back"),
        ({"borders": [{"to": "student"}]}, "key `from`"),
        ({"borders": [{"from": "teacher", "to": "student", "carries": "images"}]}, "unknown value"),
    ],
)
def test_what_is_no_file_of_sections_is_refused(models: dict[str, str], change: dict[str, Any], words: str):
    with pytest.raises(EtudeError, match=words):
        made(distill(models) | change)


@pytest.mark.parametrize(
    ("teacher", "words"),
    [
        ({"mode": "half"}, "train: column 1: unknown value `half`"),
        ({"shares": "nobody", "gpus": 0}, "not name a section with its own ranks"),
        ({"shares": "student"}, "not both"),
        ({"plan": {"gpus": 3}}, "does not belong in a section's plan"),
        ({"plan": {"seq": 32, "tp": 3}}, "not a multiple"),
        ({"active": 1.5}, "more than 1"),
    ],
)
def test_what_is_no_section_is_refused(models: dict[str, str], teacher: dict[str, Any], words: str):
    with pytest.raises(EtudeError, match=words):
        made(distill(models, teacher=teacher))


def test_gradients_that_nobody_sends_are_refused(models: dict[str, str]):
    with pytest.raises(EtudeError, match="gets no gradients"):
        made(seeing(models, text={"mode": "layers:2.."}))
    with pytest.raises(EtudeError, match="gpipe"):
        made(seeing(models, image={"plan": {"schedule": "1f1b"}}))


def test_ranks_that_do_not_fit_are_refused(models: dict[str, str]):
    with pytest.raises(EtudeError, match="do not fit the sections"):
        made(distill(models), gpus=7)


def test_examples_are_sound():
    folder = Path(__file__).parents[2] / "examples" / "sections"
    for path in sorted(folder.glob("*.yaml")):
        if path.stem == "internvit-6b":
            continue  # a model
        found = open_sections(path)
        assert found.ranks(found.gpus)
