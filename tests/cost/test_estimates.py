"""Ranges of predicted figures, worked by hand: a table of one figure, and cases near and far from it."""

from dataclasses import replace

import pytest

from etude.cost.estimates import Estimate, EstimateCase, columns, estimate_of
from etude.cost.estimates.evidence import ErrorQuantiles, Evidence, evidence

H100, H200, TPU = "NVIDIA H100 SXM5 80GB", "NVIDIA H200 SXM 141GB", "Google TPU v5e"
KNOWN = {
    "step": Evidence(
        about="steps",
        kinds={
            "dense": ErrorQuantiles(rows=80, sources=8, half=0.05, most=0.2),
            "xla": ErrorQuantiles(rows=4, sources=1, half=0.05, most=0.2),
        },
        widths={"stack": 0.6931471805599453, "device": 0.6931471805599453, "fp8": 0.4054651081081644},
        fitted=(H100,),
        seen=(H100, TPU),
    )
}  # ln 2, ln 2, ln 1.5

LITTLE = ErrorQuantiles(rows=4, sources=1, half=0.3, most=0.9)


def case(**more: object) -> EstimateCase:
    return EstimateCase(**{"figure": "step", "kind": "dense", "device": H100, **more})  # type: ignore[arg-type]


def test_a_case_like_those_that_were_measured_has_their_range():
    found = estimate_of(100.0, case(), KNOWN)
    assert found.low == pytest.approx(81.873075)  # 100 / 1.221403
    assert found.high == pytest.approx(122.140276)
    assert found.low_50 == pytest.approx(95.122942)
    assert found.high_50 == pytest.approx(105.127110)
    assert (found.basis["evidence"], found.basis["rows"], found.basis["sources"]) == (True, 80, 8)
    assert found.basis["text"] == "80 held-out rows of 8 sources, steps: dense models"


@pytest.mark.parametrize(
    ("more", "width"),
    [
        ({"named": False}, 2.0),
        ({"precision": "fp8"}, 1.5),
        ({"device": TPU}, 2.0),  # rows, but nothing was fitted to them
        ({"device": H200}, 2.0),  # no row, one of its generation
        ({"named": False, "device": H200, "precision": "fp8"}, 6.0),
        ({"gpus": 640}, 1.0),  # this table does not widen with scale
    ],
)
def test_ranges_widen_with_each_distance(more: dict[str, object], width: float):
    found = estimate_of(100.0, case(**more), KNOWN)
    assert found.most == pytest.approx(0.2 * width)
    assert found.half == pytest.approx(0.05 * width)
    assert found.basis["width"] == pytest.approx(width, abs=1e-3)


def test_distances_are_what_was_not_measured():
    assert case().distances([H100]) == {}
    assert case(gpus=6400, unstated=2).distances([H100]) == {"scale": 2.0, "unstated": 2.0}
    assert case(precision="fp4").distances([]) == {"device": 1.0, "fp4": 1.0}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"device": "NVIDIA A100 SXM4 80GB"}, "no evidence for the step on NVIDIA A100 SXM4 80GB"),
        ({"kind": "adapters"}, "no evidence for the step of adapters and frozen models on NVIDIA H100 SXM5 80GB"),
        ({"kind": "xla"}, "no evidence for the step of models under XLA on NVIDIA H100 SXM5 80GB"),  # of four rows
        ({"figure": "carbon"}, "no evidence for the carbon of dense models on NVIDIA H100 SXM5 80GB"),
    ],
)
def test_far_from_all_rows_there_is_no_range(more: dict[str, object], said: str):
    found = estimate_of(825.0, case(**more), KNOWN)
    assert (found.low, found.high, found.low_50, found.high_50) == (None, None, None, None)
    assert (found.basis["evidence"], found.basis["text"]) == (False, said)
    assert found.text(lambda value: f"{value:.0f} ms") == f"825 ms ({said})"


def test_text_has_the_range_in_the_unit_of_the_value():
    found = Estimate(value=0.825, half=0.05, most=0.1, basis={})  # factors 0.904837 and 1.105171
    assert found.text(lambda value: f"{value * 1000:.0f} ms") == "825 ms (746–912)"
    assert found.at(12345.6).text(lambda value: f"{value:.1f}") == "12345.6 (11,200–13,600)"
    assert found.at(0.5).text(lambda value: f"{value:.1%}") == "50.0% (45.2–55.3%)"
    assert found.at(0.0).text(lambda value: f"{value:.1f} GB") == "0.0 GB (0–0)"


def test_columns_are_by_figure():
    found = columns({"step_s": Estimate(value=2.0, half=None, most=None, basis={"evidence": False})})
    assert found == {
        "low": {"step_s": None},
        "high": {"step_s": None},
        "low_50": {"step_s": None},
        "high_50": {"step_s": None},
        "basis": {"step_s": {"evidence": False}},
    }


def test_the_table_of_the_package_is_of_held_out_rows():
    known = evidence()
    assert {"step", "memory"} <= set(known)
    for one in known.values():
        assert all(0 < its.half <= its.most for its in one.kinds.values())
        assert one.seen


def test_a_kind_of_few_rows_has_those_of_the_wider_kind():
    known = {"step": replace(KNOWN["step"], kinds={**KNOWN["step"].kinds, "dense, all at once": LITTLE})}
    found = estimate_of(1.0, case(kind="dense, all at once"), known)
    assert found.most == pytest.approx(0.2)
    assert found.basis["text"].endswith("dense models; too few rows of dense models, all at once")
    known = {"step": replace(KNOWN["step"], kinds={"dense, all at once": replace(LITTLE, rows=5)})}
    assert estimate_of(1.0, case(kind="dense, all at once"), known).most == pytest.approx(0.9)


def test_devices_with_larger_errors_have_wider_ranges():
    known = {"step": replace(KNOWN["step"], devices={H100: 1.5})}
    assert estimate_of(1.0, case(), known).most == pytest.approx(0.3)
    assert case(batch=80.0).distances([H100]) == {"batch": 1.0}
    assert case(batch=4.0).distances([H100]) == {}


def limited(**more: object) -> dict[str, Evidence]:
    """A table whose rows are on H100s and TPUs, of 8 to 64 devices, with 1,000 to 100,000 elements."""
    its = ErrorQuantiles(rows=80, sources=8, half=0.05, most=0.2, **more)  # type: ignore[arg-type]
    return {"step": replace(KNOWN["step"], kinds={"dense": its}, precisions=(f"fp8 on {H100}",))}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"precision": "fp4"}, "of 4-bit products on NVIDIA H100 SXM5 80GB"),
        ({"precision": "fp8", "device": TPU}, "of 8-bit products on Google TPU v5e"),
        ({"gpus": 129}, "of dense models on 129 devices: the most measured are 64"),
        ({"elements": 99.0}, "of dense models of so small products, where the host decides"),
        ({"elements": 1_000_001.0}, "of dense models of so large products"),
    ],
)
def test_beyond_the_rows_there_is_no_range(more: dict[str, object], said: str):
    known = limited(most_gpus=64.0, least_elements=1_000.0, most_elements=100_000.0)
    assert estimate_of(1.0, case(**more), known).basis["text"] == f"no evidence for the step {said}"


@pytest.mark.parametrize(
    "more", [{"gpus": 128}, {"elements": 100.0}, {"elements": 1_000_000.0}, {"precision": "fp8", "device": H200}, {}]
)
def test_up_to_there_there_is_one(more: dict[str, object]):
    known = limited(most_gpus=64.0, least_elements=1_000.0, most_elements=100_000.0)
    assert estimate_of(1.0, case(**more), known).basis["evidence"]


def test_a_kind_whose_rows_are_on_other_devices_has_no_range():
    found = estimate_of(1.0, case(device=TPU), limited(devices=(H100,)))
    assert found.basis["text"] == "no evidence for the step of dense models on Google TPU v5e"
    assert estimate_of(1.0, case(device=H200), limited(devices=(H100,))).basis["evidence"]  # of one generation


def test_ranges_never_become_narrower_with_distance():
    """Of the table of the package: each distance, and all of them one after another."""
    known = evidence()["step"]
    near = EstimateCase(figure="step", kind="dense", device=H100)
    steps = [{"named": False}, {"precision": "fp8"}, {"gpus": 1024}, {"unstated": 2}]
    so_far, wide = near, known.width(near)
    for step in steps:
        assert known.width(replace(near, **step)) >= known.width(near)  # type: ignore[arg-type]
        so_far = replace(so_far, **step)  # type: ignore[arg-type]
        assert known.width(so_far) >= wide
        wide = known.width(so_far)


def test_figures_that_are_made_of_another_have_its_range():
    step = Estimate(value=2.0, half=0.1, most=0.2, basis={"text": "rows"})
    rate = step.at(500.0)  # tokens per second
    assert rate.high / rate.value == pytest.approx(step.high / step.value)
    assert rate.low * step.high == pytest.approx(rate.value * step.value)
    assert (step.about, replace(step, most=None).about) == ("9 of 10, by rows", "rows")


def test_pooled_kinds_say_how_many_rows_are_behind_their_range():
    its = ErrorQuantiles(rows=8, sources=1, half=0.1, most=0.4, pooled=True, pool_rows=48, pool_sources=4)
    basis = estimate_of(1.0, case(), {"step": replace(KNOWN["step"], kinds={"dense": its})}).basis
    assert (basis["rows"], basis["pool_rows"], basis["pool_sources"]) == (8, 48, 4)
    assert basis["text"] == (
        "8 held-out rows of 1 source, steps: dense models, "
        "pooled with other kinds of few rows or sources: 48 held-out rows of 4 sources"
    )
