"""Keys and values by two paths: blocks counted by hand, prices of one block, and what is refused."""

import pytest

from etude.base.errors import UsageError
from etude.machine.tier import Tier
from etude.world.serve.offload import offloaded
from etude.world.serve.offload.paths import prices
from etude.world.serve.requests import requests_of
from etude.world.serve.steps import step_cost
from toy_systems import one_level

NOTHING = step_cost(tokens=[0, 1000], layers_ns=[0.0, 0.0])
MEMORY = Tier(name="page_cache", read_bytes_per_s=10e9, write_bytes_per_s=5e9, read_ahead_bytes=4096)
DISK = Tier(name="disk", read_bytes_per_s=2e9, write_bytes_per_s=1e9, latency_ns=10_000.0, slots=4)


def run(path: str, blocks: int, output: int = 3, prompt: int = 2560, cost=NOTHING):
    """Two layers, 2 bytes a token and layer: blocks of 1024 bytes. 2560 tokens are 5 blocks of each layer."""
    from dataclasses import replace

    system = replace(one_level("ring", 2), tiers=(MEMORY, DISK))
    requests = requests_of([0], [prompt], [output])
    return offloaded(
        requests, cost, system, path=path, memory_bytes=1024 * blocks, layers=2, token_bytes=4.0
    )  # fmt: skip


def test_blocks_are_read_from_the_disk_as_they_have_no_room():
    """The second piece of the prompt reads 4 blocks of 2 layers, each of two further tokens 10: 28 in all."""
    assert [run("direct", n)["reads"] for n in (0, 5, 10)] == [28, 28, 28]
    assert [run("cache", n)["reads"] for n in (0, 10)] == [28, 0]
    assert run("cache", 9)["reads"] == 20  # the prompt finds its 8, rounds of 10 find nothing in 9
    # those that came first stay: 4 of one layer and one of the other, which the piece and the two rounds find
    assert run("dual", 5)["reads"] == 28 - 5 * 3
    assert run("dual", 10)["reads"] == 0
    assert run("dual", 5)["disk_written_bytes"] == 5 * 1024


def test_a_block_costs_a_copy_or_the_slots_of_the_disk():
    price = prices(16384, MEMORY, DISK)
    assert price.hit == pytest.approx(1638.4)
    assert price.miss == pytest.approx(4 * 10_000 + 1638.4)  # four requests of 4096 bytes, one at a time
    assert price.direct == pytest.approx(10_000)  # four at a time: 1.6 GB/s, below the disk's 2
    assert price.store == pytest.approx(3276.8) and price.out == pytest.approx(16384)


# A block of 1024 bytes: 102.4 ns from memory (10 GB/s), 204.8 ns into it (5 GB/s), 1024 ns onto the disk (1 GB/s); from
# the disk 625 ns with four requests of 4096 bytes in 10 us, and 10,000 ns for one at a time, which fetches 4096 bytes.


def test_the_direct_path_by_hand():
    """Ten new blocks are written to the disk, 8 are read by the second piece, 10 by each of two further tokens."""
    found = run("direct", 5)
    assert found["prefill_s"] == pytest.approx((10 * 1024 + 8 * 625) / 1e9)
    assert found["decode_s"] == pytest.approx(20 * 625 / 1e9)
    assert found["tpot_s"] == pytest.approx(10 * 625 / 1e9)
    assert found["io_s"] == pytest.approx(27_740 / 1e9)
    assert (found["disk_read_bytes"], found["disk_written_bytes"]) == (28 * 1024, 10 * 1024)
    assert found["disk_use"] == pytest.approx(38 * 1024 / (2 * 27_740))  # of 2 bytes a ns
    assert (found["hits"], found["compute_s"], found["kv_bytes"]) == (0, pytest.approx(4e-9), 2560 * 4)


def test_the_page_cache_by_hand():
    """Nine of ten blocks have room. The prompt finds its 8; 20 reads of tokens out go to the disk and are copied."""
    found = run("cache", 9)
    assert found["prefill_s"] == pytest.approx((10 * 204.8 + 8 * 102.4) / 1e9)
    assert found["decode_s"] == pytest.approx(20 * (10_000 + 102.4) / 1e9)
    assert (found["disk_read_bytes"], found["disk_written_bytes"], found["hits"]) == (20 * 4096, 1024, 8)


def test_both_paths_by_hand():
    """Five blocks stay in memory. Of 8 reads of the second piece 5 are there, and of 10 of each token out."""
    found = run("dual", 5)
    written, stored = 5 * 1024, 5 * 204.8
    assert found["prefill_s"] == pytest.approx((written + stored + 5 * 102.4 + 3 * 625) / 1e9)
    assert found["decode_s"] == pytest.approx(2 * (5 * 102.4 + 5 * 625) / 1e9)
    assert (found["disk_read_bytes"], found["hits"]) == (13 * 1024, 15)


def test_requests_are_served_one_after_another():
    from dataclasses import replace

    system = replace(one_level("ring", 2), tiers=(MEMORY, DISK))
    both = requests_of([0, 9], [2560, 2560], [3, 1])
    found = offloaded(both, NOTHING, system, path="direct", memory_bytes=1, layers=2, token_bytes=4.0)
    assert found["prefill_s"] == pytest.approx(2 * 15_240 / 1e9)
    assert found["tpot_s"] == pytest.approx(6_250 / 1e9)  # the second has no further token
    assert found["requests"] == 2


def test_a_pass_takes_the_longer_of_loading_and_computing():
    """10 ns a token, and 3 ns for logits: pieces of 2048 and 512 tokens, of which the last has logits; two tokens
    out."""
    cost = step_cost(tokens=[0, 4096], layers_ns=[0.0, 40_960.0], head=([1, 2], [3.0, 3.0]))
    found = run("direct", 5, cost=cost)
    assert found["compute_s"] == pytest.approx((25_603 + 2 * 13) / 1e9)
    assert found["prefill_s"] == pytest.approx(25_603 / 1e9)  # 15,240 ns of loads are hidden
    assert found["decode_s"] == pytest.approx(12_500 / 1e9)  # 26 ns of computing are


def test_attention_reads_every_key_before_a_token():
    """1 ns a key of a decoding token, and as many for a prompt as it has pairs: 5 tokens, then 6 and 7 keys."""
    import numpy as np

    grid = np.zeros((2, 2, 2, 2))
    grid[:, :, 1, 1] = 100.0  # one sequence with 100 keys
    cost = step_cost(tokens=[0, 1000], layers_ns=[0.0, 0.0], attention=((0, 1000), (0, 1000), (0, 1), (0, 100), grid))
    found = run("direct", 5, prompt=5, output=3, cost=cost)
    assert found["compute_s"] == pytest.approx((1 + 6 + 7) / 1e9)  # a pass of no time takes 1 ns


def test_dual_is_no_worse_than_either():
    for blocks in range(11):
        cache, direct, dual = (run(path, blocks)["io_s"] for path in ("cache", "direct", "dual"))
        assert dual <= min(cache, direct) * (1 + 1e-12)


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(UsageError, match="unknown path `both`"):
        run("both", 5)
    with pytest.raises(UsageError, match="has no tiers"):
        offloaded(
            requests_of([0], [10], [2]), NOTHING, one_level("ring", 2), path="dual", memory_bytes=9, layers=1,
            token_bytes=1.0,
        )  # fmt: skip
