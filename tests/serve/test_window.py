"""Moments of a served stream as jobs: the spans of passes by hand, and their times against the node level."""

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.model.check import check
from etude.world.serve import Engine, serve
from etude.world.serve.catalogue import pass_tables
from etude.world.serve.requests import requests_of
from etude.world.serve.serving import Group
from etude.world.serve.stacks import ServingStack
from etude.world.serve.steps import step_cost
from etude.world.serve.stored import job_of_window, node_level_ns, parse_window, passes_in

MILLISECOND = [Group(step_cost(tokens=[1], layers_ns=[1e6]), 1, blocks=100)]


def spans(moment) -> list[list[tuple[int, int, int, bool, bool]]]:
    return [[(s.request, s.queries, s.keys, s.prompt, s.last) for s in p.spans] for p in moment.passes[0]]


def two(**engine):
    """A prompt of 5 tokens and one of 3, two and three tokens out; four tokens a pass, of a millisecond."""
    rules = Engine(max_num_batched_tokens=4, **engine)
    return serve(requests_of(np.zeros(2), np.array([5, 3]), np.array([2, 3])), rules, MILLISECOND, keep_passes=True)


@pytest.mark.parametrize("ahead", [True, False])
def test_the_tokens_of_each_request_in_each_pass(ahead: bool):
    served = two(async_scheduling=ahead)
    all_of = [
        [(0, 4, 4, True, False)],
        [(0, 1, 5, True, True), (1, 3, 3, True, True)],
        [(0, 1, 6, False, False), (1, 1, 4, False, False)],
        [(1, 1, 5, False, False)],
    ]
    assert spans(passes_in(served, MILLISECOND, parse_window("0:1s"))) == all_of
    assert [p.outputs for p in passes_in(served, MILLISECOND, parse_window("0:1s")).passes[0]] == [0, 2, 2, 1]
    # From the middle of the second pass on; the request that was first is still number 0.
    later = passes_in(served, MILLISECOND, parse_window("1500us:3ms@0"))
    assert spans(later) == [all_of[2]] and later.start_ns[0].tolist() == [2_000_000] and later.requests == ((0, 1),)


def test_what_is_no_window_is_refused():
    served = two()
    for text, problem in (("1s", "--window"), ("2s:1s", "is empty"), ("0:1s@x", "--window")):
        with pytest.raises(UsageError, match=problem):
            parse_window(text)
    with pytest.raises(UsageError, match="no pass starts"):
        passes_in(served, MILLISECOND, parse_window("1s:2s"))
    with pytest.raises(UsageError, match="no replica 7"):
        passes_in(served, MILLISECOND, parse_window("0:1s@7"))
    drafted = two(num_speculative_tokens=2, acceptance=0.5)
    with pytest.raises(UsageError, match="not written node by node"):
        passes_in(drafted, MILLISECOND, parse_window("0:1s"))


def test_the_node_level_takes_as_long_as_the_loop():
    """Two replicas of two ranks; passes with prompts, with tokens out and with both."""
    model, plan, system = open_model("qwen3-0.6b").replace(layers=4), Plan(gpus=2, tp=2), open_system("dgx-h100")
    tables = pass_tables(model, plan, system, keep=False)
    groups = [Group(tables.step_cost(ServingStack()), 2, blocks=10_000)]
    draw = np.random.default_rng(1)
    requests = requests_of(np.sort(draw.integers(0, 10**7, 40)), draw.integers(200, 2000, 40), draw.integers(2, 30, 40))
    served = serve(requests, Engine(), groups, keep_passes=True, router="least")
    moment = passes_in(served, groups, parse_window("2ms:20ms"), router="least")
    job = job_of_window(model, plan, moment)
    assert moment.replicas == (0, 1) and len(job) == 4 and not check(job)
    simulated, looped = np.concatenate(node_level_ns(job, plan, moment, system)), np.concatenate(moment.time_ns)
    off = np.abs(simulated / looped - 1)
    assert len(off) > 20 and off.max() <= tables.error[1] and np.median(off) < 0.03
    assert 0 < tables.error[0] < 0.01 and simulated.sum() == pytest.approx(looped.sum(), rel=0.05)
