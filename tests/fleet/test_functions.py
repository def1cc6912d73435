"""Experts as functions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.surface.cli import main
from etude.world.clock import run_alone
from etude.world.fleet.functions.costs import ExpertPieces, cut, expert_pieces
from etude.world.fleet.functions.loop import FunctionRequests, call_functions, work
from etude.world.fleet.functions.results import functions_record
from etude.world.fleet.functions.spec import Functions, read_functions

S = 1_000_000_000


def pieces(layers: int = 1, experts: int = 4, top_k: int = 1) -> ExpertPieces:
    """A layer takes 1 ns beside its experts, an expert 10 ns whatever its tokens."""
    numbers = np.array([1, experts])
    return ExpertPieces(
        np.ones((4, layers + 1), np.int64), numbers, np.array([1]), 10.0 * numbers[:, None], 1000, 7, experts, top_k
    )


def spec(**more: object) -> Functions:
    usual = {"model": "m", "system": "s", "experts_per_function": 2, "every_ns": S, "duration_ns": 1000, "output": 1}
    return Functions(**(usual | {"prompt": 1, "cold_ns": 100, "keep": "50ns", "invoke_ns": 0} | more))  # type: ignore[arg-type]


def called(rows: list[tuple[int, list[int]]], **more: object) -> FunctionRequests:
    """One layer of two functions: (arrival, ns of each function)."""
    arrival = np.array([at for at, _ in rows], np.int64)
    groups = [np.array([[took]], np.int64) for _, took in rows]
    return run_calls(spec(**more), np.zeros_like(arrival), arrival, groups)


def run_calls(asked: Functions, tenant: I64, arrival: I64, groups: list[I64]) -> FunctionRequests:
    return run_alone(FunctionRequests(asked, pieces(), tenant, arrival, groups))


def test_cold_then_warm_then_cold_again_and_what_was_held():
    found = called([(0, [20, 0]), (150, [20, 0]), (300, [20, 0])])
    # 1 + 100 cold + 20 + 1; at 151 idle since 121, until 171 + 50 = 221; at 301 a new one, 401..421, gone at 471
    assert found.end_ns.tolist() == [122, 172, 422]
    assert found.colds == [True, False, True]
    assert found.held_ns().tolist() == [(221 - 1) + (471 - 301), 0] and sum(found.colds) == 2


def test_an_instance_is_kept_to_the_last_instant():
    """Idle from 121 on, kept for 50: a call at 171 finds it, one at 172 does not."""
    assert called([(0, [20, 0]), (170, [20, 0])]).colds == [True, False]
    assert called([(0, [20, 0]), (171, [20, 0])]).colds == [True, True]


def test_what_stays_loaded_is_all_but_the_experts():
    """Qwen1.5-MoE: attention of 4 x 2,048^2, a shared expert of 3 x 2,048 x 5,632 and a router of 60 in 24 layers, and
    151,936 words of 2,048 twice, in two bytes; norms and biases are less than a thousandth."""
    model = str(Path(__file__).parents[2] / "examples" / "qwen1.5-moe.yaml")
    found = expert_pieces(spec(model=model, system="dgx-a100"))
    layer = 4 * 2048**2 + 3 * 2048 * 5632 + 2048 * 60
    assert found.dense_bytes == pytest.approx(2 * (24 * layer + 2 * 151_936 * 2048), rel=1e-3)
    assert found.expert_bytes == 2 * 3 * 2048 * 1408


def test_a_call_that_finds_none_idle_starts_one_or_waits():
    rows = [(0, [20, 0]), (10, [20, 0])]
    assert called(rows).end_ns.tolist() == [122, 132]
    found = called(rows, instances=1)
    assert found.end_ns.tolist() == [122, 142] and sum(found.colds) == 1 and found.waited_ns == 121 - 11


def test_calls_are_sent_one_after_another_and_the_last_answer_counts():
    found = called([(0, [20, 20])], keep="endless", invoke_ns=5)
    assert found.end_ns.tolist() == [1 + 2 * 5 + 20 + 1]
    assert found.held_ns().tolist() == [1000, 1000] and not any(found.colds)
    assert found.times == [6, 11]


def test_tenants_share_functions_or_have_their_own():
    arrival, groups = np.array([0, 150]), [np.array([[[20, 0]]])] * 2
    for shared, cold, held in ((True, 1, 220), (False, 2, 2 * 170)):
        found = run_calls(spec(tenants=2, shared=shared), np.array([0, 1]), arrival, groups)
        assert sum(found.colds) == cold and int(found.held_ns().sum()) == held
        assert functions_record(found)["resident_byte_s"]["dense"] == 1000 * (1 if shared else 2) * 1000 / 1e9


def test_routing_does_not_depend_on_how_experts_are_cut():
    cuts = [spec(experts_per_function=g, prompt=3, output=2) for g in (1, 3)]
    one, two = (work(asked, pieces(2, 6, 2), np.random.default_rng(1)) for asked in cuts)
    assert one.shape == (2, 2, 6) and two.shape == (2, 2, 2)
    assert np.array_equal((one > 0).reshape(2, 2, 2, 3).any(3), two > 0)
    assert ((one[1] > 0).sum(axis=1) == 2).all()  # a token has two experts in each layer
    assert np.array_equal(one.reshape(2, 2, 2, 3).sum(3), two)  # here an expert takes 10 ns in any function


def test_cold_starts_follow_from_rate_and_keep():
    asked = spec(experts_per_function=4, every_ns=S, duration_ns=2000 * S, keep="700ms", cold_ns=0, instances=1)
    record = functions_record(call_functions(asked, pieces(), seed=2))
    part = record["after_keep"]["cold"] / record["after_keep"]["invocations"]
    assert abs(part - 0.4966) < 4 * (0.25 / 2000) ** 0.5  # e^-0.7
    assert record["resident_byte_s"]["experts"] == pytest.approx(28 * 2000 * (1 - 0.4966), rel=0.08)


def test_a_pass_is_cut_at_its_experts():
    modules = ["embedding.tokens", "layers.0.attention", "layers.0.experts.up", "layers.0.experts.down", "head"] * 2
    ends = np.cumsum([1, 2, 3, 4, 5, 10, 20, 30, 40, 50])
    beside, took = cut(modules, np.concatenate([[0], ends[:-1]]), ends, 2, "m")
    assert beside.tolist() == [[3, 5], [30, 50]] and took.tolist() == [[7], [70]]


def test_between_predicted_numbers_and_tokens_is_a_plane():
    table = replace(
        pieces(), numbers=np.array([1, 3]), rows=np.array([1, 5]), experts_ns=np.array([[10.0, 50], [30, 70]])
    )
    number, tokens = np.array([1, 3, 2, 1, 1]), np.array([1, 3, 2, 5, 3])
    assert table.service_ns(number, tokens).tolist() == [10, 30, 20, 50, 30]


def test_bad_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path, good = tmp_path / "moe.yaml", "model: gpt2\nsystem: dgx-a100\nexperts_per_function: 1\nevery: 1s\n"
    for more, told in (
        ("duration: 1s\nkeep: long\n", "`long` is not a time"),
        ("duration: 1s\ngrain: 1\n", "unknown key `grain`"),
        ("duration: 100d\n", "more than 1,000,000 requests"),
    ):
        path.write_text(good + more, "utf-8")
        with pytest.raises(UsageError, match=told):
            read_functions(path)
    path.write_text(good + "duration: 1s\n", "utf-8")
    assert main(["fleet", str(path)]) == 2 and "has no experts" in capsys.readouterr().err
    assert main(["fleet", str(path), "--policy", "fifo"]) == 2
