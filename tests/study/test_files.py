"""What a study file may say: spaces, expressions, parameters in commands, and what is refused with a way out."""

from pathlib import Path
from typing import Any

import pytest

from etude.base.errors import UsageError
from etude.decide.study.expressions import evaluated
from etude.decide.study.points import points_of
from etude.decide.study.spec import spec_of
from etude.extend import Space

SMALL: dict[str, Any] = {"workload": "predict m", "metrics": {"step": "step_time_ns"}}


def made(**more: Any) -> Any:
    return spec_of({**SMALL, **more}, "s", "s.yaml", Path("/nowhere"))


def commands(**more: Any) -> list[str]:
    spec = made(**more)
    return [point.task.shown() for point in points_of(spec, list(spec.variants))]


def test_a_grid_a_condition_and_a_list() -> None:
    assert Space(axes={"a": [1, 2], "b": ["x", "y"]}).points() == [
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"},
    ]  # fmt: skip
    assert Space(axes={"a": [1, 2, 4], "b": [1, 2, 4]}, when="a * b == 4").points() == [
        {"a": 1, "b": 4}, {"a": 2, "b": 2}, {"a": 4, "b": 1},
    ]  # fmt: skip
    assert Space(rows=[{"a": 1}, {"a": 7}]).points() == [{"a": 1}, {"a": 7}]
    assert Space().points() == [{}]


def test_a_sample_is_part_of_the_grid_and_always_the_same() -> None:
    space = Space(axes={"a": list(range(100))}, sample=7)
    drawn = [p["a"] for p in space.points()]
    assert drawn == sorted(set(drawn)) and len(drawn) == 7
    assert space.points() == Space(axes={"a": list(range(100))}, sample=7).points()


def test_ranges_of_an_axis() -> None:
    assert made(sweep={"a": {"from": 1, "to": 8, "times": 2}}).space.axes == {"a": [1, 2, 4, 8]}
    assert made(sweep={"a": {"from": 0, "to": 1, "step": 0.5}}).space.axes == {"a": [0, 0.5, 1.0]}


@pytest.mark.parametrize(
    "axis", [{"from": 0, "to": 8, "times": 2}, {"from": 1, "to": 8, "times": 1}, {"from": 1, "to": 8, "step": 0},
             {"from": 1, "to": 8}, {"from": 3, "to": 1, "step": 1}, [], 4],
)  # fmt: skip
def test_a_range_without_an_end_is_refused(axis: Any) -> None:
    with pytest.raises(UsageError, match="expected a list of values"):
        made(sweep={"a": axis})


def test_parameters_are_flags() -> None:
    assert commands(
        machine="dgx-h100", set={"micro_batch": 2}, baseline={"name": "plain", "tp": 1},
        variants={"wide": {"tp": 4, "edit": ["compress ratio=2", "fuse"], "quiet": True, "off": False, "no": None}},
    ) == [
        "etude predict m --micro-batch 2 --tp 1 --system dgx-h100 --json",
        "etude predict m --micro-batch 2 --tp 4 --edit 'compress ratio=2' --edit fuse --quiet --system dgx-h100 --json",
    ]  # fmt: skip


def test_parameters_have_places_and_expressions() -> None:
    spec = spec_of(
        {
            "run": ["generate {model} --gpus {2 * tp} -o job", "etude info job {flags} --json"],
            "set": {"model": "gpt", "deep": True}, "sweep": {"tp": [1, 4]}, "metrics": {"n": "nodes"},
        },
        "s", "s.yaml", Path("/nowhere"),
    )  # fmt: skip
    assert [p.task.shown() for p in points_of(spec, ["baseline"])] == [
        "etude generate gpt --gpus 2 -o job; etude info job --deep --json",
        "etude generate gpt --gpus 8 -o job; etude info job --deep --json",
    ]


def test_a_machine_and_files_are_written_with_their_parameters() -> None:
    spec = made(
        machine="net-{gbit}.yaml", sweep={"gbit": [100, 400]},
        files={"net-{gbit}.yaml": {"name": "net", "levels": [{"bandwidth": "{gbit / 8}GB/s"}], "devices": "{gbit}"}},
    )  # fmt: skip
    first, second = points_of(spec, ["baseline"])
    assert first.task.files == {"net-100.yaml": "name: net\nlevels:\n- bandwidth: 12.5GB/s\ndevices: 100\n"}
    assert second.task.shown() == "etude predict m --system net-400.yaml --json"
    assert "bandwidth: 50GB/s" in second.task.files["net-400.yaml"]


def test_the_key_is_the_content(tmp_path: Path) -> None:
    (tmp_path / "ops.csv").write_text("a")
    spec = spec_of({"workload": "info ops.csv", "metrics": {"n": "nodes"}}, "s", "s.yaml", tmp_path)
    first = points_of(spec, ["baseline"])[0].task
    assert first.inputs == {"ops.csv": str(tmp_path / "ops.csv")}
    (tmp_path / "ops.csv").write_text("b")
    assert points_of(spec, ["baseline"])[0].task.key != first.key


@pytest.mark.parametrize(
    "given, problem",
    [
        ({"sweeep": {}}, "unknown key `sweeep`"),
        ({"run": ["info"]}, "one of `workload` and `run`"),
        ({"metrics": {}}, "no metric is given"),
        ({"metrics": {"step": {"value": "a", "beter": "lower"}}}, "unknown key `beter`"),
        ({"metrics": {"step": "a +"}}, "is not an expression"),
        ({"metrics": {"step": "(lambda: 1)()"}}, "uses lambda"),
        ({"workload": "predict m --tp 2", "set": {"tp": 4}}, "`--tp` is in the command and a parameter as well"),
        ({"sweep": {"x": {"from": 0, "to": float("inf"), "step": 1}}}, "expected a list of values"),
        ({"sweep": {"x": {"from": 0, "to": 10**9, "step": 1}}}, "more than 1,000,000 values"),
        ({"seeds": 10**9}, "1,000,000,000 seeds"),
        ({"set": {"x": "{9 ** 9 ** 9}"}}, "a power of more than 4,096 bits"),
        ({"checks": [{"name": "a", "kind": "exact", "that": "1 + 1"}]}, "is not a condition"),
        ({"claims": [{"figure": "a", "published": 0, "ours": "1"}]}, "a published gain is above 0"),
        ({"claims": [{"figure": "a", "ours": "1 + 1"}]}, "without a published figure, `ours` is a condition"),
        ({"stats": "t"}, "unknown stats `t`"),
        ({"seeds": 0}, "expected a number of seeds"),
        ({"seeds": [1, 1]}, "expected a number of seeds"),
        ({"baseline": {"tp": 1}, "sweep": {"tp": [1]}}, "`tp` is given by sweep and by baseline"),
        ({"predict": {"zip": "lower"}}, "no variant `zip`"),
        ({"checks": [{"name": "a", "kind": "shape", "that": "step() > 1"}]}, "a shape needs a margin"),
        ({"checks": [{"name": "a", "kind": "shape", "that": "step() > 1", "margin": 1}]}, "a shape needs a margin"),
        ({"checks": [{"name": "a", "kind": "exact", "that": "step() > margin"}]}, "cannot have a margin"),
        ({"checks": [{"name": "a", "kind": "sure", "that": "step() > 1"}]}, "unknown kind `sure`"),
        ({"checks": [{"name": "a", "kind": "exact", "that": "1", "why": 1}]}, "unknown key `why`"),
        ({"variants": {"baseline": {}}}, "is also the name of the baseline"),
        ({"workload": "study run x"}, "a study cannot run studies"),
        ({"set": {"a-b": 1}}, "is not a valid name for a parameter"),
        ({"sweep": {"a": list(range(2000)), "b": list(range(2000))}}, "4,000,000 points"),
        ({"sweep": {"a": [1]}, "when": "a > 1"}, "no point is left"),
        ({"files": {"a.yaml": "{x}"}, "sweep": {"x": [1, 2]}}, "is not the same at every point"),
        ({"files": {"../a.yaml": "x"}}, "is not the name of a file in the study's folder"),
        ({"workload": "predict {modell}"}, "unknown name `modell`"),
        ({"workload": "predict 'x"}, "no closing quotation"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        commands(**given)


def test_a_parameter_that_no_command_uses_is_refused() -> None:
    spec = spec_of({"run": ["info x"], "set": {"tp": 2}, "metrics": {"n": "nodes"}}, "s", "s.yaml", Path("/nowhere"))
    with pytest.raises(UsageError, match="no command uses the parameter `tp`"):
        points_of(spec, ["baseline"])


def test_expressions() -> None:
    record = {"a": {"b": [{"c": 1}, {"c": 4}]}, "n": 3}
    assert evaluated("sum(a.b.c) / n", record, "x") == 5 / 3
    assert evaluated("[v.c * 2 for v in a.b if v.c > 1][0]", record, "x") == 8
    assert evaluated("rising([1, 2, 2, 3]) and not rising([1, 2, 1]) and rising([100, 99, 101], by=0.02)", {}, "x")
    assert evaluated("falling([3, 2]) and not falling([2, 2])", {}, "x")
    assert evaluated("get(a, 'z', 7)", record, "x") == 7


@pytest.mark.parametrize(
    "text", ["__import__('os')", "a.__class__", "().__class__", "open('x')", "a.z", "n / 0", "n[0]", "n.a"]
)
def test_expressions_reach_nothing_else(text: str) -> None:
    with pytest.raises(UsageError):
        evaluated(text, {"a": {"b": 1}, "n": 3}, "x")
