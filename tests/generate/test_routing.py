"""Tokens that go to each node once: groups, bytes and times. Worked by hand, or drawn."""

import random

import pytest

from etude.base.errors import EtudeError
from etude.machine import open_system
from etude.make.generate.blocks.transformer import distinct
from etude.make.generate.model.open import open_model
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import generate
from etude.model.job import Job
from etude.model.schema import Collective
from etude.run.simulate.run import simulate

MIXTURE = open_model("qwen3-30b-a3b").replace(layers=1)  # 128 experts, 8 for each token, hidden 2048
TOKENS, HIDDEN, TOP = 4096, 2048, 8


def made(**more: int) -> Job:
    return generate(MIXTURE, Plan(gpus=16, ep=16, seq=TOKENS, micro_batch=1, global_batch=16, **more)).job


def exchanges(job: Job, phase: str) -> list[tuple[str, int]]:
    """(slot, bytes) of the all-to-alls of a rank, in order."""
    trace = job.trace(0)
    phases, words = trace.coded("phase")
    rows = [
        i for i in range(len(trace)) if trace.collective[i] == int(Collective.ALL_TO_ALL) and words[phases[i]] == phase
    ]
    return [(trace.group_slots[trace.group[i]], int(trace.in_bytes[i])) for i in rows]


def permutations(job: Job) -> int:
    names, words = job.trace(0).coded("name")
    return int((names == words.index("aten::index_select")).sum())


def test_every_copy_goes_alone_where_nothing_is_said():
    assert exchanges(made(), "forward") == [("ep", 2 * TOKENS * TOP * HIDDEN)] * 2


def test_inside_a_node_a_token_goes_once_to_each_rank():
    """Eight experts on 16 ranks: 16 (1 - (15/16)^8) = 6.4526... ranks. Nobody permutes tokens before they are sent, or
    adds up their copies when they are back."""
    job = made(ep_node=16)
    assert exchanges(job, "forward") == [("ep", round(TOKENS * 16 * (1 - (15 / 16) ** 8) * HIDDEN) * 2)] * 2
    assert permutations(job) == 4  # to the experts' order and back, forward and backward
    assert permutations(made()) == 8


def test_a_token_goes_once_to_each_node():
    """Four nodes, at most two for each token: 2 (1 - 1/2^8) = 1.9921875 nodes, and 8 (1 - (7/8)^8) of their ranks."""
    once, each = round(2 * TOKENS * 1.9921875 * HIDDEN), 2 * round(TOKENS * 8 * (1 - (7 / 8) ** 8) * HIDDEN)
    there, back = [("ep_out", once), ("ep_in", each)], [("ep_in", each), ("ep_out", once)]
    job = made(ep_node=4, moe_nodes=2)
    assert exchanges(job, "forward") == [*there, *back]
    assert exchanges(job, "backward-input") == [*there, *back]
    start, ranks = job.groups.start, job.groups.members
    members = {name: ranks[start[i] : start[i + 1]].tolist() for i, name in enumerate(job.groups.names)}
    assert members["ep_in.1"] == [4, 5, 6, 7]
    assert members["ep_out.1"] == [1, 5, 9, 13]


def test_one_call_sends_between_nodes_and_inside_them():
    """The host issues the exchanges of one node, whatever the nodes: 8 us an op."""
    alone, once = (made(host_ns=8000, **more).trace(0) for more in ({"ep_node": 16}, {"ep_node": 4}))
    assert len(once) > len(alone)
    issued, other = (int(t.duration_ns[(t.cpu == 1) & (t.duration_ns > 0)].sum()) for t in (once, alone))
    assert issued == other > 0


@pytest.mark.parametrize(("places", "top"), [(8, 8), (4, 8), (2, 3), (16, 1)])
def test_places_of_a_token_as_drawn(places: int, top: int):
    random.seed(7)
    draws = 20_000
    total = sum(len({random.randrange(places) for _ in range(top)}) for _ in range(draws))
    assert distinct(places, top) == pytest.approx(total / draws, rel=0.01)


def test_fewer_bytes_between_nodes_take_less_time():
    system = open_system("dgx-h100").resized(16)
    alone, once = (simulate(made(**more), system).makespan_ns for more in ({}, {"ep_node": 8, "moe_nodes": 1}))
    assert once < alone


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"moe_nodes": 2}, "expert-parallel ranks per node"),
        ({"ep_node": 5}, "not a multiple of 5"),
        ({"ep_node": 4, "moe_nodes": 5}, "there are 4 nodes"),
        ({"ep_node": 4, "moe_skew": 1.5}, "equally loaded"),
    ],
)
def test_what_cannot_be_is_refused(more: dict[str, int], message: str):
    with pytest.raises(EtudeError, match=message):
        made(**more)


def test_a_dense_model_has_no_experts_to_send_to():
    with pytest.raises(EtudeError, match="no experts"):
        generate(open_model("llama3-8b").replace(layers=1), Plan(gpus=16, ep=1, ep_node=1))
