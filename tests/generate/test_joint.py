"""One pipeline through the stages of an encoder and of a language model: orders, bytes and what is refused."""

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from etude.base.errors import UsageError
from etude.machine import open_system
from etude.make.generate.schedules.by_name import schedule
from etude.make.generate.schedules.pipeline import in_flight
from etude.make.generate.sections.job import Sectioned, generate_sections
from etude.make.generate.sections.spec import open_sections, sections_of
from etude.model.check.whole import check
from etude.model.schema import Kind
from etude.model.totals import totals
from etude.model.trace import Trace
from etude.run.simulate.run import simulate

DGX = open_system("dgx-h100")
TEXT = {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "head_size": 16, "ffn": 128, "vocab": 512, "gated": True}
IMAGE = {"family": "vit", "layers": 4, "hidden": 64, "heads": 4, "ffn": 128, "image": 28, "patch": 4, "classes": 10}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder, found = tmp_path_factory.mktemp("models"), {}
    for name, shape in (("text", TEXT), ("image", IMAGE)):
        found[name] = str(folder / f"{name}.yaml")
        Path(found[name]).write_text(yaml.safe_dump(shape))
    return found


def given(models: dict[str, str], *, joint: bool = True, **changes: Any) -> dict[str, Any]:
    image = {"model": models["image"], "gpus": 2, "plan": {"pp": 2}}
    text = {"model": models["text"], "gpus": 4, "plan": {"pp": 4, "seq": 32}}
    border = {"from": "image", "to": "text", "tokens": 16, "width": 64, "joint": joint}
    return {
        "batch": 8,
        "sections": {"image": image | changes.get("image", {}), "text": text | changes.get("text", {})},
        "borders": [border | changes.get("border", {})],
    }


def shared(models: dict[str, str], **changes: Any) -> dict[str, Any]:
    image = {"gpus": 0, "shares": "text", "plan": {"pp": 2}} | changes.pop("image", {})
    text = {"gpus": 2, "plan": {"pp": 2, "seq": 32}} | changes.pop("text", {})
    return given(models, image=image, text=text, **changes)


def made(given_: dict[str, Any]) -> Sectioned:
    found = generate_sections(sections_of(given_))
    assert list(check(found.job)) == []
    assert not simulate(found.job, DGX.for_ranks(found.gpus)).timing.partial
    return found


def words(trace: Trace) -> list[str]:
    """F0, F1, B0 ... of a rank's compute, in the order of its program."""
    phases, labels = trace.coded("phase")
    rows = np.flatnonzero((trace.kind == int(Kind.COMP)) & (trace.micro_batch >= 0)).tolist()
    done = (f"{'F' if labels[phases[i]] == 'forward' else 'B'}{int(trace.micro_batch[i])}" for i in rows)
    return [key for key, _ in groupby(done)]


def test_ranks_of_their_own_have_the_order_of_one_pipeline(models: dict[str, str]):
    """Two stages and four: as the ranks of 1F1B with six."""
    job, whole = made(given(models)).job, schedule("1f1b", ranks=6, micro_batches=8)
    for rank in range(6):
        assert words(job.trace(rank)) == [word.partition(str(rank))[2] for word in whole.order(rank)]


def test_shared_ranks_have_the_order_of_chunks(models: dict[str, str]):
    """Two stages and two on two ranks: as interleaved 1F1B, whose first chunk is the encoder."""
    job, whole = made(shared(models)).job, schedule("interleaved:2", ranks=2, micro_batches=8)
    run = simulate(job, DGX.for_ranks(2))
    for rank in range(2):
        trace, (start, _) = job.trace(rank), run.timing.block(rank)
        rows = np.flatnonzero((trace.kind == int(Kind.COMP)) & (trace.micro_batch >= 0))
        rows = rows[np.argsort(start[rows], kind="stable")].tolist()
        phases, labels = trace.coded("phase")
        names, called = trace.coded("name")
        # Activations are GELUs in the encoder and gates in the decoder; no two actions in a row have one micro-batch.
        found = [
            (any("gelu" in called[names[i]] for i in some), *key)
            for key, some in (
                (key, list(some))
                for key, some in groupby(
                    rows, key=lambda i: (labels[phases[i]] == "forward", int(trace.micro_batch[i]))
                )
            )
        ]
        columns = (whole.stage[whole.rows(rank)], whole.action[whole.rows(rank)], whole.micro_batch[whole.rows(rank)])
        wanted = [(s // 2 == 0, a == 1, m) for s, a, m in zip(*(c.tolist() for c in columns), strict=True)]
        assert found == wanted


def test_the_order_is_all_that_changes(models: dict[str, str]):
    """Operations, parameters and bytes over the border are those of sections that take turns."""
    one, other = made(given(models)), made(given(models, joint=False))
    assert one.border_bytes == other.border_bytes == {"image-text": (8 * 16 * 64 * 2,) * 2}
    for figure in ("flops", "params", "comm_bytes_by_type"):
        assert one.summary()[figure] == other.summary()[figure]
    assert totals(one.job)["flops"] == sum(totals(s.found.job)["flops"] for s in one.sections)


def test_an_encoder_keeps_what_is_under_way_and_no_more(models: dict[str, str]):
    """Of 8 micro-batches the encoder's two ranks hold 6 and 5, where they held all; the decoder's as before."""
    held = [s.found.layout.schedule for s in made(given(models)).sections]
    assert [in_flight(s).tolist() for s in held] == [[6, 5], [4, 3, 2, 1]]
    assert in_flight(made(given(models, joint=False)).sections[0].found.layout.schedule).tolist() == [8, 8]


@pytest.mark.parametrize("order", ["interleaved:1", "zb1p", "gpipe"])
def test_the_decoder_may_have_another_order(models: dict[str, str], order: str):
    """As many micro-batches are under way as it takes in."""
    found = made(given(models, text={"plan": {"pp": 4, "seq": 32, "schedule": order}}))
    behind = {"interleaved:1": 7, "zb1p": 4, "gpipe": 8}
    assert found.sections[0].found.plan.schedule == f"1f1b:{behind[order]}"


@pytest.mark.parametrize("on", [given, shared])
@pytest.mark.parametrize(
    "image", [{"active": 0.5}, {"active": 0.5, "deal": "own"}, {"mode": "forward"}, {"per_sample": 2}]
)
def test_samples_stay_in_their_micro_batch(models: dict[str, str], on: Any, image: dict[str, Any]):
    found = made(on(models, image=image))
    first, second = found.sections
    both = first.slot >= 0
    assert (first.slot[both] // first.found.plan.dp == second.slot[both] // second.found.plan.dp).all()
    assert int(both.sum()) == (4 if "active" in image else 8)


def test_layouts_differ_and_micro_batches_are_as_many(models: dict[str, str]):
    """Two data-parallel copies of the encoder, with a sample each, for one of the decoder with two."""
    image = {"gpus": 4, "plan": {"pp": 2, "micro_batch": 1}}
    text = {"gpus": 4, "plan": {"pp": 2, "tp": 2, "seq": 32, "micro_batch": 2}}
    found = made(given(models, image=image, text=text))
    assert [s.found.plan.micro_batches for s in found.sections] == [4, 4]


def test_three_sections_in_a_row(models: dict[str, str]):
    """Two stages, one and one: the first waits for two more, the second for one."""
    first = {"model": models["text"], "gpus": 2, "plan": {"pp": 2, "seq": 32}}
    one = {"model": models["text"], "gpus": 1, "plan": {"seq": 32}}
    borders = [{"from": a, "to": b, "joint": True} for a, b in (("a", "b"), ("b", "c"))]
    found = made({"batch": 8, "sections": {"a": first, "b": one, "c": one}, "borders": borders})
    assert [s.found.plan.schedule for s in found.sections] == ["1f1b:2", "1f1b:1", "1f1b"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": {"plan": {"pp": 2, "schedule": "gpipe"}}}, "has a single order"),
        ({"image": {"plan": {"pp": 2, "micro_batch": 2}}}, "same number of micro-batches, not `image` 4, `text` 8"),
        ({"border": {"carries": "logits"}}, "carries `hidden`"),
        ({"text": {"plan": {"pp": 4, "seq": 32, "schedule": "dualpipe"}}}, "several ranks or out of order"),
    ],
)
def test_what_cannot_be_is_refused(models: dict[str, str], changes: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        generate_sections(sections_of(given(models, **changes)))


def test_shared_ranks_need_as_many_stages(models: dict[str, str]):
    with pytest.raises(UsageError, match="same number of stages, not `image` 1, `text` 2"):
        generate_sections(sections_of(shared(models, image={"plan": {"micro_batch": 1}})))


def test_the_example_is_one_pipeline():
    found = open_sections("examples/sections/vision-joint.yaml")
    assert found.next_of("image") == "text" and found.pipeline("image") == ("image",)
