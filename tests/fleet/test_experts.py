"""A serving group that ranks leave and join: places of experts by hand, and a timeline that adds up."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.make.generate.passes import PassShape, pass_job
from etude.surface.cli import main
from etude.world.fleet import Recovery
from etude.world.fleet.experts import ExpertGroup, ExpertPrices, parse_failures, serve_group
from etude.world.fleet.experts.places import loads_of, needs, spread, without

MODEL = open_model("deepseek-v3").replace(
    layers=3, dense_layers=1, hidden=256, heads=4, ffn=512, vocab=1000, experts=8, top_k=2, expert_ffn=128,
    shared_ffn=128, q_rank=64, kv_rank=32,
)  # fmt: skip
EXPERT = 3 * 256 * 128 * 2 * 2
"""Three products in two layers, of 2 bytes."""
FOUND = open_system("dgx-h100")
SYSTEM = FOUND.replace(levels=(replace(FOUND.levels[0], size=2), FOUND.levels[1]))
TIMES = Recovery(detect_ns=1e9, regroup_ns=2e9, restart_ns=20e9)


def served(recover: str = "shrink", **given):
    group = ExpertGroup(sequences=4, context=64, horizon_ns=60e9, **{"redundant": 4, "replace_ns": 5e9, **given})
    return serve_group(ExpertPrices(MODEL, SYSTEM, 4, 64), group, ranks=4, recover=recover, recovery=TIMES)


def test_sequences_that_do_not_fit_are_refused_unless_that_is_not_checked():
    """A million tokens of each of 10,000 sequences, with 32 + 64 numbers of two bytes in three layers: 5.8 TB."""
    with pytest.raises(UsageError, match="10000 sequences of 1,000,000 tokens take"):
        ExpertPrices(MODEL, SYSTEM, 10_000, 1_000_000).at(4, 3, 1.0)


def test_every_rank_has_as_much_and_copies_are_on_other_nodes():
    place = spread(8, 4, 4, 2)  # four experts once and four twice: 4 and 4 halves
    assert place.shape == (4, 3) and loads_of(place, 8).tolist() == [2.0] * 4
    ranks = [np.flatnonzero((place == expert).any(axis=1)) // 2 for expert in range(8)]
    assert sorted(len(nodes) for nodes in ranks) == [1] * 4 + [2] * 4
    assert all(len(set(nodes.tolist())) == len(nodes) for nodes in ranks)


def test_lost_experts_take_the_places_of_copies_and_nothing_else_moves():
    place = np.array([[0, 1, 2], [2, 3, 4], [4, 5, 0], [1, 3, 5]])  # every expert twice
    alive = np.array([True, True, False, True])
    assert needs(place, without(place, alive, 6)) == [[], [], [], []]  # 4, 5 and 0 are still there
    alive[3] = False  # 5 was on both
    after = without(place, alive, 6)
    assert sorted(after[after >= 0].tolist()) == [0, 1, 2, 3, 4, 5]
    assert [len(wanted) for wanted in needs(place, after)] in ([1, 0, 0, 0], [0, 1, 0, 0])  # in the place of a 2


def test_one_rank_that_is_left_holds_all():
    place = spread(8, 0, 4, 2)
    after = without(place, np.array([False, False, True, False]), 8)
    assert sorted(after[2].tolist()) == list(range(8)) and (after[[0, 1, 3]] == -1).all()


def test_a_rank_leaves_and_joins():
    found = served(fail="rank1@10s")
    first, second = found["pauses"]
    assert first["experts"] == 1 and first["read_bytes"] == {"peer": 0, "host": EXPERT, "storage": 0}  # 1 and 2 halves
    assert first["parts_s"]["detect"] == 1.0 and first["parts_s"]["regroup"] == 2.0
    assert second["why"] == "join" and second["parts_s"] == {"regroup": 2.0} and second["at_s"] > 10 + 1 + 5
    assert [row["ranks"] for row in found["curve"] if row["state"] == "serve"] == [4, 3, 4]
    fewer = found["configs"][1]
    assert fewer["fullest"] == 3.0 / 8 * 3  # 2.5, 2.5 and 3 experts' worth of tokens: nothing is more even
    # the rank that joins gets all its weights from the others, one of which gets back the copy that had given way
    assert second["read_bytes"] == {"peer": found["rank_bytes"] + EXPERT, "host": 0, "storage": 0}


@pytest.mark.parametrize("recover", ["shrink", "restart"])
@pytest.mark.parametrize("fail", ["", "rank1@10s", "rank1@10s;rank2@11s;node0@16s", "node1@10s;rank0@20s;rank0@58s"])
def test_times_follow_one_another_and_tokens_come_from_whole_passes(fail: str, recover: str):
    found = served(recover, fail=fail, host_copies="none", storage_bytes_per_s=1e6)
    rows, steps = found["curve"], {c["ranks"]: c["step_s"] for c in found["configs"]}
    assert rows[0]["start_s"] == 0 and all(a["end_s"] == b["start_s"] for a, b in pairwise(rows))
    assert 60 - rows[-1]["end_s"] < max(steps.values()) + 1e-6
    for row in rows:
        if row["state"] != "serve":
            assert row["tokens"] == 0
        elif len(steps) == len(found["configs"]):
            passes = (row["end_s"] - row["start_s"]) / steps[row["ranks"]]
            assert (
                passes == pytest.approx(round(passes), abs=1e-3) and row["tokens"] == round(passes) * row["ranks"] * 4
            )
    assert found["tokens"] == sum(row["tokens"] for row in rows)
    assert found["pauses"] or not fail


def test_without_a_fault_nothing_is_lost_and_both_ways_are_one():
    assert served("shrink") == served("restart") and served()["down_s"] == 0


def test_a_failure_in_a_pause_begins_it_anew():
    found = served(fail="rank1@10s;rank2@12s")
    first, second = found["pauses"][:2]
    assert first["pause_s"] == 2.0 and first["read_bytes"] == {"peer": 0, "host": 0, "storage": 0}
    assert second["parts_s"]["detect"] == 1.0 and second["experts"] >= 2  # those of the first are still to be loaded
    assert not served(fail="rank1@10s", redundant=8)["pauses"][0]["experts"]  # every expert twice


def test_copies_of_the_experts_far_away_take_longer():
    near, far, lost = (served(fail=f, host_copies=c, storage_bytes_per_s=1e6) for f, c in
                       [("rank1@10s", "own"), ("rank1@10s", "none"), ("node1@10s", "own")])  # fmt: skip
    assert far["pauses"][0]["parts_s"]["load"] == pytest.approx(EXPERT / 1e6)
    assert near["pauses"][0]["parts_s"]["load"] < far["pauses"][0]["parts_s"]["load"]
    assert lost["pauses"][0]["read_bytes"]["host"] == 0 < lost["pauses"][0]["read_bytes"]["storage"]


def test_a_restart_loads_from_the_nearest_copy_too():
    for copies, hosts in [("own", 2), ("all", 4), ("none", 0)]:  # ranks of four, of which two were on a lost host
        found = served("restart", fail="node1@10s", host_copies=copies)
        size = found["rank_bytes"]
        assert found["pauses"][0]["read_bytes"] == {"peer": 0, "host": hosts * size, "storage": (4 - hosts) * size}


def test_copies_of_a_plan_that_share_experts_run_the_same_passes():
    job = pass_job(MODEL, Plan(gpus=4, ep=4), [PassShape(decode=2, keys=8), PassShape(chunk=8)])
    assert len(job) == 4 and len(job.traces) == 1


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--fail", "rank9@1s"], "rank 9 of 4"),
        (["--fail", "disk1@1s"], "disk1@1s"),
        (["--fail", "rank1@700s"], "after the end"),
        (["--redundant", "3"], "not a multiple"),
        (["--fail", "rank1@1s", "--recover", "spare"], "unknown policy"),
        (["--tp", "2"], "--tp is not read by `etude fleet experts`"),
        (["--faults", "llama3"], "--faults is not read by `etude fleet experts`"),
        (["--sequences", "100000"], "take"),
    ],
)
def test_what_cannot_be_is_refused(more: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(["fleet", "mixtral-8x7b", "--serve", "--ep", "4", "--system", "dgx-h100", *more]) == 2
    assert told in capsys.readouterr().err


def test_failures_are_read_in_order_of_time():
    assert [f.ranks for f in parse_failures("node1@2s; rank0@1s", ranks=5, node=4)] == [(0,), (4,)]
    with pytest.raises(UsageError):
        parse_failures("rank0", ranks=5, node=4)
