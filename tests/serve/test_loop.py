"""The loop over requests and passes: against a naive twin, queueing theory, and what must be conserved."""

import numpy as np
import pytest

import naive_serve
from etude.base.errors import UsageError
from etude.world.serve import Engine, serve
from etude.world.serve.requests import Requests, requests_of
from etude.world.serve.steps import step_cost
from etude.world.serve.workloads import poisson

CONSTANT = step_cost(tokens=[1], layers_ns=[1000.0])
BY_TOKENS = step_cost(tokens=[0, 1000], layers_ns=[100.0, 10100.0])  # 100 + 10 a token


def drawn(seed: int, count: int = 40) -> Requests:
    random = np.random.default_rng(seed)
    return requests_of(
        np.cumsum(random.integers(0, 900, count)), random.integers(1, 60, count), random.integers(1, 30, count)
    )


def rows(requests: Requests) -> list[tuple[int, int, int]]:
    first = zip(requests.arrival_ns.tolist(), requests.prompt.tolist(), requests.output.tolist(), strict=True)
    return list(first)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("blocks", [10**6, 24])
@pytest.mark.parametrize("reserve", [True, False])
def test_the_loop_is_its_naive_twin(seed: int, chunked: bool, blocks: int, reserve: bool):
    requests = drawn(seed)
    engine = Engine(
        chunked=chunked, max_num_batched_tokens=64, max_num_seqs=7, block_size=4, num_gpu_blocks=blocks,
        reserve=reserve, async_scheduling=False, enable_prefix_caching=False,
    )  # fmt: skip
    found = serve(requests, engine, BY_TOKENS)
    wanted = naive_serve.served(
        rows(requests), time_ns=lambda prompt, decode: 100 + 10 * (prompt + decode), chunked=chunked, budget=64,
        max_seqs=7, block=4, blocks=blocks, reserve=reserve,
    )  # fmt: skip
    columns = (found.column(name).tolist() for name in ("FIRST", "FINISH", "PREEMPTED"))
    assert list(zip(*columns, strict=True)) == wanted


def test_two_requests_by_hand():
    # Budget 4, one pass takes 1000: the first prompt of 6 is cut in two; its rest shares a pass with part of the other.
    requests = requests_of([0, 0], [6, 3], [2, 1])
    found = serve(requests, Engine(max_num_batched_tokens=4, async_scheduling=False), CONSTANT)
    # 0..1000: 4 of a; 1000..2000: 2 of a, 2 of b; 2000..3000: token of a, 1 of b
    assert found.column("FIRST").tolist() == [2000, 3000]
    assert found.column("FINISH").tolist() == [3000, 3000]


def test_prompts_that_are_not_cut_wait_for_a_pass_with_room():
    # Budget 6: of prompts of 4 and 3, the second is not begun in the two tokens that the first leaves.
    requests = requests_of([0, 0, 0], [4, 3, 9], [2, 1, 1])
    engine = Engine(max_num_batched_tokens=6, async_scheduling=False, cut_prompts=False)
    found = serve(requests, engine, CONSTANT)
    # 0..1000: a; 1000..2000: token of a, b; 2000..4000: the third is longer than any pass, and alone: 6, then 3 of it
    assert found.column("FIRST").tolist() == [1000, 2000, 4000]
    cut = serve(requests, Engine(max_num_batched_tokens=6, async_scheduling=False), CONSTANT)
    assert cut.column("FIRST").tolist() == [1000, 2000, 3000]


def test_a_pass_chosen_ahead_leaves_out_what_arrives_meanwhile():
    requests = requests_of([0, 500], [1, 1], [5, 1])
    at_once = serve(requests, Engine(async_scheduling=False), CONSTANT)
    ahead = serve(requests, Engine(async_scheduling=True), CONSTANT)
    assert at_once.column("FIRST").tolist() == [1000, 2000]
    assert ahead.column("FIRST").tolist() == [1000, 3000]
    assert ahead.column("QUEUED").tolist() == [0, 1000]


def test_who_gave_way_finds_the_blocks_that_nobody_took():
    """A block each, and the first takes a third for its 5th to 8th token: the second gives way, and comes back to the
    block of its prompt when the first is done. With a 9th token that block is taken."""
    requests = requests_of([0, 0], [4, 4], [5, 6])
    rules = {"block_size": 4, "num_gpu_blocks": 3, "async_scheduling": False}
    again = serve(requests, Engine(enable_prefix_caching=False, **rules), CONSTANT)
    found = serve(requests, Engine(enable_prefix_caching=True, **rules), CONSTANT)
    # without, it reads its prompt and its first token again; with, that token is one that decodes
    assert again.count("READ")[0] == 4 + 4 + 5 and found.count("READ")[0] == 4 + 4
    assert found.count("FOUND")[0] == 4
    assert again.count("PENDING")[0] == found.count("PENDING")[0] == 0
    longer = requests_of([0, 0], [4, 4], [6, 6])
    assert serve(longer, Engine(enable_prefix_caching=True, **rules), CONSTANT).count("FOUND")[0] == 0


def test_mean_wait_of_constant_service():
    """M/D/1: one server, Poisson arrivals at 0.7 of its rate, first come first served."""
    requests = poisson(0.7e6, 60_000, 8, 1, seed=3)
    found = serve(requests, Engine(max_num_seqs=1, async_scheduling=False), CONSTANT)
    wait = (found.column("FIRST") - requests.arrival_ns - 1000).mean()
    assert wait == pytest.approx(0.7 * 1000 / (2 * (1 - 0.7)), rel=0.04)


def test_requests_in_the_system_are_rate_times_time():
    """The integral of how many are there is the sum of how long each was there: exactly, if empty at both ends."""
    requests = drawn(9, 200)
    found = serve(requests, Engine(max_num_seqs=4, async_scheduling=False), BY_TOKENS)
    events = sorted([(t, 1) for t in requests.arrival_ns.tolist()] + [(t, -1) for t in found.column("FINISH").tolist()])
    area, there, before = 0, 0, 0
    for time, change in events:
        area, there, before = area + there * (time - before), there + change, time
    assert there == 0
    assert area == int((found.column("FINISH") - requests.arrival_ns).sum())


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("router", ["turn", "least", "tokens", "two", "session"])
def test_tokens_are_conserved_and_nobody_is_served_before_it_comes(ahead: bool, router: str):
    requests = drawn(11, 300)
    engine = Engine(max_num_batched_tokens=32, max_num_seqs=5, async_scheduling=ahead)
    found = serve(requests, engine, BY_TOKENS, replicas=3, router=router, keep_passes=True)
    assert found.count("MADE").sum() == requests.output.sum()
    assert found.count("READ").sum() == requests.prompt.sum()
    assert (found.column("SCHEDULED") >= requests.arrival_ns).all()
    assert (found.column("FIRST") - requests.arrival_ns >= 100 + 10 * np.minimum(requests.prompt, 32)).all()
    assert (found.column("FINISH") >= found.column("FIRST")).all()
    assert found.count("USED").tolist() == [0, 0, 0] and found.count("PENDING").tolist() == [0, 0, 0]
    passes = found.passes
    assert passes is not None and passes.num_rows == found.count("PASSES").sum()
    assert sum(passes["prompt_tokens"].to_pylist()) + sum(passes["decode"].to_pylist()) == (
        requests.prompt.sum() + requests.output.sum() - len(requests)
    )


def test_a_replica_with_work_is_never_idle():
    requests = drawn(5, 200)
    found = serve(requests, Engine(max_num_seqs=3, async_scheduling=False), BY_TOKENS, keep_passes=True)
    assert found.passes is not None
    start, end = (found.passes[name].to_numpy() for name in ("start_ns", "end_ns"))
    for gap in np.flatnonzero(start[1:] > end[:-1]).tolist():
        before = requests.arrival_ns <= end[gap]
        assert (found.column("FINISH")[before] <= end[gap]).all()


def test_latency_grows_with_the_rate():
    engine = Engine(max_num_seqs=8)
    means = []
    for rate in (1e4, 1e5, 3e5, 1e6):
        requests = poisson(rate, 2000, 20, 10, seed=1)
        found = serve(requests, engine, BY_TOKENS)
        means.append(float((found.column("FINISH") - requests.arrival_ns).mean()))
    assert means == sorted(means)


def test_a_barrier_of_one_replica_is_none_and_of_two_waits_for_the_longer():
    requests = drawn(2)
    plain = Engine(async_scheduling=False)
    with_barrier = Engine(async_scheduling=False, barrier=True)
    alone, barred = (serve(requests, engine, BY_TOKENS).column("FINISH") for engine in (plain, with_barrier))
    assert alone.tolist() == barred.tolist()
    pair = requests_of([0, 0], [50, 10], [1, 3])
    found = serve(pair, with_barrier, BY_TOKENS, replicas=2)
    assert found.column("FINISH").tolist() == [600, 600 + 110 + 110]


def test_same_input_same_output():
    requests = drawn(4, 200)
    runs = [serve(requests, Engine(), BY_TOKENS, replicas=4, router="two", seed=7) for _ in range(2)]
    assert runs[0].state.request.tolist() == runs[1].state.request.tolist()


def test_a_router_of_the_user_is_asked_for_each_request():
    requests = drawn(6, 50)
    seen = []

    def route(request, replicas, now_s):
        seen.append((request["request"], now_s))
        return min(range(len(replicas)), key=lambda i: (replicas[i].running + replicas[i].waiting, i))

    found = serve(requests, Engine(), BY_TOKENS, replicas=3, router=route)
    built_in = serve(requests, Engine(), BY_TOKENS, replicas=3, router="least")
    assert [number for number, _ in seen] == list(range(50))
    assert found.column("REPLICA").tolist() == built_in.column("REPLICA").tolist()


@pytest.mark.parametrize("answer", [None, 3, -1, "0", True])
def test_nonsense_of_a_router_is_refused(answer: object):
    with pytest.raises(UsageError, match="request 0: `<lambda>` returned"):
        serve(drawn(1), Engine(), BY_TOKENS, replicas=3, router=lambda *_: answer)


def test_a_router_that_raises_is_named():
    def route(request, replicas, now_s):
        raise KeyError("x")

    with pytest.raises(UsageError, match="request 0: `route` raised KeyError"):
        serve(drawn(1), Engine(), BY_TOKENS, replicas=3, router=route)


def test_a_request_that_never_fits_is_refused():
    with pytest.raises(UsageError, match="request 1: 100 tokens in and 5 out never fit the 4 blocks"):
        serve(requests_of([0, 1], [10, 100], [5, 5]), Engine(num_gpu_blocks=4), CONSTANT)


def test_an_unknown_router_is_refused():
    with pytest.raises(UsageError, match="unknown router `best`"):
        serve(drawn(1), Engine(), CONSTANT, router="best")
