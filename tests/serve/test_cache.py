"""What caches find: against plain sets and lists, on the same pieces; tiers, policies, shards, what a hit costs."""

from dataclasses import replace

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.world.serve import Engine, serve
from etude.world.serve.cache import CacheRules, Room, cache_rules, on_system
from etude.world.serve.pieces import pieces_of
from etude.world.serve.requests import Requests, requests_of
from etude.world.serve.reuse import no_reuse, reuse_of
from etude.world.serve.serving import Served
from etude.world.serve.steps import step_cost
from etude.world.serve.store import hits, store_of
from etude.world.serve.wire import Codec, wire_of
from etude.world.serve.workloads import Agents, Recommend
from toy_systems import one_level

BY_TOKENS = step_cost(tokens=[0, 1000], layers_ns=[100.0, 10100.0])  # 100 + 10 a token
CONSTANT = step_cost(tokens=[1], layers_ns=[1000.0])
APART = 10**9


def found(requests: Requests, words: str, room: int | None = None) -> np.ndarray:
    """Tokens found, one request after another, in a store of so many tokens."""
    rules = cache_rules(words)
    if room is not None:
        rules = replace(rules, tiers=(Room(name="host", bytes=room),))
    known = reuse_of(requests) if rules.policy == "expected" else no_reuse()
    store = store_of(requests, rules, 1, 16)
    return hits(store, known, requests.prompt, requests.session, requests.arrival_ns)


def of_one_size(seed: int, count: int = 120) -> Requests:
    """Prompts that begin with a run of one of a few trees, in blocks of 512 tokens, and one block of their own."""
    random = np.random.default_rng(seed)
    lists = []
    for k in range(count):
        tree, depth = int(random.integers(6)), int(random.integers(1, 9))
        lists.append([1000 * tree + d for d in range(depth)] + [10**6 + k])
    prompt = [512 * len(one) for one in lists]
    return requests_of(np.arange(count) * APART, prompt, np.full(count, 4), blocks=lists)


def recommended(seed: int = 3) -> Requests:
    return Recommend(requests=60, users=5, items=40, listed=4).drawn(1.0, np.random.default_rng(seed))


def texts(requests: Requests) -> list[list[tuple[int, int]]]:
    """The tokens of each prompt, as (name, place in it)."""
    made = []
    for r in range(len(requests)):
        part = range(requests.block_start[r], requests.block_start[r + 1])
        made.append([(int(requests.block[k]), j) for k in part for j in range(int(requests.block_tokens[k]))])
    return made


def test_without_limit_blocks_find_what_was_seen_and_prefixes_the_leading_run():
    requests = recommended()
    seen: set[int] = set()
    wanted = []
    for r in range(len(requests)):
        part = range(requests.block_start[r], requests.block_start[r + 1])
        tokens = sum(int(requests.block_tokens[k]) for k in part if int(requests.block[k]) in seen)
        wanted.append(min(tokens, int(requests.prompt[r]) - 1))
        seen.update(int(requests.block[k]) for k in part)
    assert found(requests, "blocks").tolist() == wanted
    earlier: set[tuple[tuple[int, int], ...]] = set()
    leading = []
    for text in texts(requests):
        run = 0
        while run + 64 <= len(text) and tuple(text[: run + 64]) in earlier:
            run += 64
        leading.append(run)
        earlier.update(tuple(text[:end]) for end in range(64, len(text) + 1, 64))
    assert found(requests, "prefix").tolist() == leading
    assert (np.array(leading) <= np.array(wanted) + 63).all() and sum(leading) < sum(wanted)


def test_content_finds_shifted_text_but_for_the_pieces_at_its_border():
    names = [[["a", 900], ["b", 1100]], [["new", 37], ["a", 900], ["b", 1100]]]
    requests = requests_of([0, APART], [2000, 2037], [2, 2], segments=names)
    assert found(requests, "prefix").tolist() == [0, 0]
    pieces = pieces_of(requests, cache_rules("content"), 16)
    one, other = (pieces.ids[pieces.start[r] : pieces.start[r + 1]].tolist() for r in (0, 1))
    fresh = [k for k, name in enumerate(other) if name not in one]
    ends = pieces.ends[pieces.start[1] :]
    assert fresh and ends[max(fresh)] <= 37 + 32 + np.diff(ends, prepend=0)[max(fresh)]  # cuts are the same after that
    assert max(fresh) < len(other) // 2
    assert found(requests, "content")[1] == 2037 - 1 - sum(np.diff(ends, prepend=0)[fresh])  # never the last token


def test_content_loses_less_than_its_largest_piece_to_a_prefix():
    requests = Agents(sessions=8, turns=5, system=700, message=200, output=90).drawn(1.0, np.random.default_rng(1))
    pieces = pieces_of(requests, cache_rules("content"), 16)
    assert (found(requests, "content") > found(requests, "prefix") - pieces.size.max()).all()
    assert found(requests, "prefix").sum() > 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("words", ["prefix", "blocks"])
def test_policies_by_room(seed: int, words: str):
    requests = of_one_size(seed)
    whole = found(requests, words).sum()
    assert found(requests, words, 0).sum() == 0
    for policy in ("lru", "belady", "ttl=10000s", "pinned=512", "expected"):
        assert found(requests, f"{words} {policy}").sum() == whole  # with all the room eviction does not matter
    for blocks in (3, 10, 20, 30):
        least, most = (found(requests, f"{words} {p}", 512 * blocks).sum() for p in ("lru", "belady"))
        assert least <= most <= whole
        assert found(requests, f"{words} expected", 512 * blocks).sum() <= most
    assert found(requests, f"{words} ttl=1s", 512 * 10).sum() <= found(requests, f"{words} lru", 512 * 10).sum()


def test_lru_is_a_list_in_order_of_use():
    requests = of_one_size(7)
    kept: list[int] = []
    wanted = []
    for r in range(len(requests)):
        ids = requests.block[requests.block_start[r] : requests.block_start[r + 1]].tolist()
        run = next((k for k, one in enumerate(ids) if one not in kept), len(ids))
        wanted.append(512 * run)
        kept = [one for one in kept if one not in ids] + ids[::-1]
        kept = kept[-20:]
    assert found(requests, "prefix lru", 512 * 20).tolist() == wanted


def test_what_no_room_has_goes_to_the_next_tier():
    """Two rooms under one another hold what one of both does, if the least recently used goes."""
    requests = of_one_size(5)
    two = CacheRules(mode="prefix", tiers=(Room(name="host", bytes=512 * 8), Room(name="nvme", bytes=512 * 12)))
    store = store_of(requests, two, 1, 16)
    assert (
        hits(store, no_reuse(), requests.prompt, requests.session, requests.arrival_ns).tolist()
        == found(requests, "prefix", 512 * 20).tolist()
    )
    assert (store.used[0] <= store.room).all() and store.moved[0, :2].min() > 0
    assert store.moved[0, 2] == 0  # nothing came from another replica


def test_pinned_fronts_outlive_what_is_newer():
    lists = [[1, 2], [3, 4], [5, 6], [1, 7]]
    requests = requests_of(np.arange(4) * APART, [1024] * 4, [2] * 4, blocks=lists)
    assert found(requests, "prefix lru", 512 * 4).tolist() == [0, 0, 0, 0]
    assert found(requests, "prefix pinned=512", 512 * 4).tolist() == [0, 0, 0, 512]


def test_a_hit_costs_its_load_its_correction_and_the_tokens_that_are_new():
    """Blocks of 100 and 200 tokens and 50 of its own: 300 are found, a tenth of them is read again. Loading 300 tokens
    of 4 bytes at 1 byte/ns takes 1200 ns."""
    names = [[["a", 100], ["b", 200], ["x", 50]], [["b", 200], ["a", 100], ["y", 50]]]
    requests = requests_of([0, APART], [350, 350], [1, 1], segments=names)
    rules = replace(cache_rules("blocks fix=0.1 host=1MB@1GB/s"))
    made = serve(requests, Engine(cache="blocks"), BY_TOKENS, caching=rules, token_bytes=4.0)
    assert made.column("HIT").tolist() == [0, 300]
    ttft = made.column("FIRST") - requests.arrival_ns
    assert ttft.tolist() == [100 + 3500, 100 + 10 * (50 + 30) + 1200]
    assert made.count("READ")[0] == 350 + 80 and made.count("STORED")[0] == 300


def test_pairs_of_what_is_new_alone_are_paid_for():
    """Attention costs 1 ns a pair. What lies at 50..150 is found: other tokens see as many keys as before."""
    attention = ([0.0, 1000.0], [0.0, 1000.0], [0.0], [0.0], np.array([[[[0.0]], [[0.0]]], [[[0.0]], [[10**6]]]]))
    cost = step_cost(tokens=[0, 1000], layers_ns=[0.0, 0.0], attention=attention)  # tokens x past
    names = [[["z", 50], ["a", 100]], [["y", 50], ["a", 100], ["n", 50]]]
    requests = requests_of([0, APART], [150, 200], [1, 1], segments=names)
    made = serve(requests, Engine(cache="blocks"), cost)
    assert made.column("HIT").tolist() == [0, 100]
    pairs = sum(p + 1 for p in (*range(50), *range(150, 200)))
    # the cost asks for the mean past of 100 tokens: pairs less those among themselves
    assert (made.column("FIRST") - requests.arrival_ns)[1] == pairs - 100 * 101 // 2


def test_no_hit_is_a_prefix_cache_and_shifted_prompts_find_nothing_without_content():
    alone = requests_of(
        np.arange(6) * APART, [300] * 6, [2] * 6, segments=[[["system", 200], [f"own-{k}", 100]] for k in range(6)]
    )
    prefix, content = (serve(alone, Engine(cache=words), BY_TOKENS) for words in ("prefix", "content"))
    assert prefix.column("HIT").tolist() == [0, *[192] * 5]
    extra = content.column("HIT") - prefix.column("HIT")
    assert (extra >= 0).all() and (extra < 64).all()  # the rest of the piece of a prefix, at most
    shifted = Agents(sessions=4, turns=4, shift=8).drawn(1.0, np.random.default_rng(2))
    found_by = [int(serve(shifted, Engine(cache=w), BY_TOKENS).count("FOUND").sum()) for w in ("prefix", "content")]
    assert found_by[0] == 0 and found_by[1] > 0.5 * shifted.prompt.sum()


def test_pieces_of_a_group_lie_on_one_replica_and_others_fetch_them():
    requests = recommended()
    words = "blocks sharded link=1GB/s"
    made = serve(requests, Engine(cache=words), BY_TOKENS, replicas=4, token_bytes=8.0)
    store = made.state.store
    there = store.where >= 0
    lies = store.pieces.home
    for one in np.flatnonzero(lies >= 0):
        assert set(np.flatnonzero(there[:, one])) <= {lies[one] % 4}
    remote = int(store.moved[:, -2].sum())
    assert 0 < remote < made.count("STORED").sum()
    near = serve(requests, Engine(cache=words), BY_TOKENS, replicas=4, token_bytes=8.0, router="affinity")
    assert near.state.store.moved[:, -2].sum() < remote
    assert near.count("MADE").sum() == requests.output.sum()


def test_one_replica_and_a_shard_are_the_same():
    requests = recommended()
    one, shard = (
        serve(requests, Engine(cache=words), BY_TOKENS).column("FINISH").tolist()
        for words in ("blocks", "blocks sharded link=1GB/s")
    )
    assert one == shard


def test_belady_in_the_blocks_of_a_device_finds_no_less():
    requests = of_one_size(11, 200)
    by = {
        p: int(serve(requests, Engine(cache=f"prefix {p}", num_gpu_blocks=500), BY_TOKENS).count("FOUND").sum())
        for p in ("lru", "belady", "ttl=1s", "pinned=512")
    }
    assert by["ttl=1s"] < by["lru"] < by["belady"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("prefx", "unknown word `prefx`"),
        ("prefix blocks", "`blocks` repeats `mode`"),
        ("none host=1GB", "`none` cannot be combined with other words"),
        ("prefix fix=0.1", "`fix` applies only to pieces found at another place"),
        ("blocks sharded", "needs a link"),
        ("prefix shared", "`shared` needs tiers"),
        ("prefix host=1GB@1GB/s coded=disk", "does not name a tier"),
        ("prefix sharded link=1GB/s", "`sharded` needs a tier"),
        ("blocks fix=2", "column 12: `fix=2`: `2` is more than 1"),
        ("prefix host=1GB host=2GB", "two tiers have the same name"),
        ("ttl=5", "has no unit"),
    ],
)
def test_words_that_say_nothing_are_refused(words: str, problem: str):
    with pytest.raises(UsageError, match=problem):
        Engine(cache=words)


def test_tiers_of_a_system_give_their_rates():
    with pytest.raises(UsageError, match="has no tier `host`"):
        on_system(cache_rules("host=1GB"), one_level("ring", 2), 1.0)
    from etude.machine import open_system

    found_rules = on_system(cache_rules("belady host=1GB nvme=1TB@7GB/s"), open_system("h200-server"), 2.0**20)
    assert [tier.bytes_per_s for tier in found_rules.tiers] == [55.4e9, 7e9]
    assert found_rules.mode == "prefix" and found_rules.tiers[0].latency_ns == 5000


# -- what is expected, and what is coded -------------------------------------------------------------------------------


def sessions_of(order: str) -> Requests:
    """A request of one piece for each letter, a second apart; a letter is a session."""
    names = [ord(one) - ord("a") for one in order]
    lists = [[[one, 64], [f"own-{k}", 16]] for k, one in enumerate(order)]
    return requests_of(
        np.arange(len(order)) * APART, np.full(len(order), 80), np.full(len(order), 1), session=names, segments=lists
    )


def test_what_is_expected_latest_goes_first():
    """Room for two prompts. `a` comes every 2 s, the others once."""
    requests = sessions_of("abacadaea")
    by = {p: found(requests, f"blocks {p}", 2 * 80)[[0, 2, 4, 6, 8]].tolist() for p in ("lru", "expected", "belady")}
    assert by == {p: [0, 64, 64, 64, 64] for p in by}
    requests = sessions_of("abcabcdeabc")
    by = {p: int(found(requests, f"blocks {p}", 3 * 80).sum()) for p in ("lru", "expected", "belady")}
    assert by["lru"] <= by["expected"] <= by["belady"]


def twice(words: str, choose: str, rate: str = "1GB/s") -> Served:
    """A prompt of 80 tokens of 100 bytes on one replica, the same front on the other, a store at 1 byte/ns."""
    requests = sessions_of("aa")
    codecs = [Codec("none"), Codec("four", 4.0, 2e9, 4e9, 10)]
    engine = Engine(async_scheduling=False, cache=f"prefix {words} far=1GB@{rate} coded=far")
    return serve(requests, engine, CONSTANT, replicas=2, token_bytes=100.0, wire=wire_of(100, 1e9, 0, codecs, choose))


def test_loads_from_a_store_are_coded():
    # 64 tokens, 6,400 bytes: as they are 6,400 ns; coded 20 + 3,200 + 1,600 + 1,600.
    late = {c: twice("shared", c).column("FIRST")[1] - APART - 1000 for c in ("fixed:none", "fixed:four", "best")}
    assert late == {"fixed:none": 6400, "fixed:four": 20 + 3200 + 1600 + 1600, "best": 6400}
    slow = {c: twice("shared", c, "250MB/s").column("FIRST")[1] - APART - 1000 for c in ("fixed:four", "best", "learn")}
    assert slow == {"fixed:four": 20 + 4800 + 6400, "best": 20 + 4800 + 6400, "learn": 25600}
    assert twice("", "best").column("FIRST")[1] == APART + 1000  # without `shared` the other replica has nothing


def test_the_rate_of_a_store_is_learnt_from_loads():
    requests = sessions_of("aaaa")
    codecs = [Codec("none"), Codec("four", 4.0)]
    engine = Engine(async_scheduling=False, cache="prefix shared far=1GB@100MB/s coded=far")
    found = serve(
        requests, engine, CONSTANT, replicas=4, token_bytes=100.0, wire=wire_of(100, 1e9, 0, codecs, "learn"),
        router=lambda request, replicas, now_s: (0, 1, 1, 2)[request["request"]],
    )  # fmt: skip
    # Replica 1 has the front in its own blocks the second time; what one has seen another does not know.
    assert (found.column("FIRST") - requests.arrival_ns - 1000).tolist() == [0, 64_000, 0, 64_000]
    assert found.state.store.link[:, 0].tolist() == [0.0, 10.0, 10.0, 0.0]
