"""Prompts that begin alike: what is found of them, against a plain set and a list in order of use."""

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.world.serve import Engine, serve
from etude.world.serve.requests import Requests, requests_of
from etude.world.serve.steps import step_cost

BY_TOKENS = step_cost(tokens=[0, 1000], layers_ns=[100.0, 10100.0])  # 100 + 10 a token
APART = 10**9


def conversations(seed: int, count: int, gap: int) -> Requests:
    """Turns of a few sessions: each begins with all whole blocks of the turn before it; the last is a part."""
    random = np.random.default_rng(seed)
    history: list[list[int]] = [[] for _ in range(5)]
    fresh, prompt, lists = 0, [], []
    for _ in range(count):
        session = int(random.integers(5))
        more = int(random.integers(0, 4))
        history[session] += range(fresh, fresh + more)
        tail = int(random.integers(1, 512))
        lists.append([*history[session], fresh + more])
        prompt.append(512 * len(history[session]) + tail)
        fresh += more + 1
        if len(history[session]) > 20:
            history[session] = history[session][:3]
    return requests_of(np.arange(count) * gap, prompt, random.integers(1, 80, count), blocks=lists)


def lists(requests: Requests) -> list[list[int]]:
    return [part.tolist() for part in np.split(requests.block, requests.block_start[1:-1])]


def naive_hits(requests: Requests, blocks: int) -> list[int]:
    """One request at a time: ids in the order in which they were used last, and how many blocks of 16 tokens each
    fills. What a request needs beyond what it finds is taken from the ids at the front."""
    kept: dict[int, int] = {}
    hits = []
    for prompt, output, ids in zip(requests.prompt.tolist(), requests.output.tolist(), lists(requests), strict=True):
        size = {one: min(512, prompt - 512 * k) // 16 for k, one in enumerate(ids)}
        run = []
        for one in ids:
            if one not in kept:
                break
            run.append(kept.pop(one))
        hits.append(min(16 * sum(run), (prompt - 1) // 16 * 16))
        need = -(-(prompt + output - 1) // 16)
        while sum(kept.values()) + need > blocks:
            kept.pop(next(iter(kept)))
        for one in reversed(ids):
            kept.pop(one, None)
            kept[one] = size[one]
    return hits


@pytest.mark.parametrize("blocks", [10**6, 1500, 900])
def test_one_at_a_time_finds_what_a_plain_list_finds(blocks: int):
    requests = conversations(1, 150, APART)
    found = serve(requests, Engine(cache="prefix", num_gpu_blocks=blocks), BY_TOKENS)
    wanted = naive_hits(requests, blocks)
    assert found.column("HIT").tolist() == wanted
    assert (found.count("EVICTED")[0] > 0) == (blocks < 10**6)
    assert found.count("READ")[0] + sum(wanted) == requests.prompt.sum()


def test_without_limit_hits_are_the_leading_runs_of_ids_seen():
    requests = conversations(2, 200, APART)
    found = serve(requests, Engine(cache="prefix"), BY_TOKENS)
    seen: set[int] = set()
    for hit, ids in zip(found.column("HIT").tolist(), lists(requests), strict=True):
        run = next((k for k, one in enumerate(ids) if one not in seen), len(ids))
        assert hit == 512 * run  # no last id is ever asked for again, so that runs are of whole ones
        seen.update(ids)


@pytest.mark.parametrize(("prompt", "hit"), [(10, 0), (16, 0), (17, 16), (512, 496), (700, 688), (1024, 1008)])
def test_a_prompt_that_comes_again_reads_the_tokens_of_its_last_block(prompt: int, hit: int):
    ids = list(range(-(-prompt // 512)))
    requests = requests_of([0, APART], [prompt, prompt], [3, 3], blocks=[ids, ids])
    found = serve(requests, Engine(cache="prefix"), BY_TOKENS)
    assert found.column("HIT").tolist() == [0, hit]
    ttft = found.column("FIRST") - requests.arrival_ns
    assert ttft.tolist() == [100 + 10 * prompt, 100 + 10 * (prompt - hit)]


@pytest.mark.parametrize("router", ["turn", "prefix"])
@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("blocks", [10**6, 800])
def test_under_load_nothing_is_lost(router: str, chunked: bool, blocks: int):
    requests = conversations(3, 300, 20_000)
    engine = Engine(cache="prefix", num_gpu_blocks=blocks, chunked=chunked, max_num_seqs=8)
    found = serve(requests, engine, BY_TOKENS, replicas=2, router=router)
    assert found.count("MADE").sum() == requests.output.sum()
    assert found.count("USED").tolist() == found.count("PENDING").tolist() == [0, 0]
    assert (found.count("PEAK") <= blocks).all() and (found.count("CACHED") <= blocks).all()
    assert (found.state.prefix.refs <= 0).all()
    there = found.state.prefix.refs == 0
    assert ((there * found.state.prefix.blocks).sum(axis=1) == found.count("CACHED")).all()
    if blocks == 10**6:
        assert found.count("READ").sum() + found.count("FOUND").sum() == requests.prompt.sum()


def test_a_router_that_looks_for_prefixes_finds_more():
    requests = conversations(4, 300, 100_000)
    engine = Engine(cache="prefix")
    turn, prefix = (
        int(serve(requests, engine, BY_TOKENS, replicas=4, router=name).count("FOUND").sum())
        for name in ("turn", "prefix")
    )
    assert prefix > turn


def test_two_that_come_together_share_blocks():
    """The second enters the pass in which the first reads 512 tokens, and shares their 32 blocks."""
    requests = requests_of([0, 0], [600, 600], [2, 2], blocks=[[0, 1], [0, 2]])
    alone = serve(requests, Engine(), BY_TOKENS)
    found = serve(requests, Engine(cache="prefix"), BY_TOKENS)
    assert alone.count("PEAK")[0] == 2 * 38 and found.count("PEAK")[0] == 32 + 2 * 6
    assert found.column("HIT").tolist() == [0, 512]


def test_what_cannot_be_asked_is_refused():
    plain = requests_of([0], [10], [2])
    with pytest.raises(UsageError, match="the requests do not name their blocks"):
        serve(plain, Engine(cache="prefix"), BY_TOKENS)
    with pytest.raises(UsageError, match="the router `prefix`"):
        serve(plain, Engine(), BY_TOKENS, router="prefix")
    many = requests_of([0], [10], [2], blocks=[[0, 1]])
    with pytest.raises(UsageError, match="request 0: has more blocks than its prompt needs"):
        serve(many, Engine(cache="prefix"), BY_TOKENS)
    with pytest.raises(UsageError, match="not a multiple of the block size 24"):
        serve(requests_of([0], [10], [2], blocks=[[0]]), Engine(cache="prefix", block_size=24), BY_TOKENS)
