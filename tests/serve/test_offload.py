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


def run(path: str, blocks: int, output: int = 3, prompt: int = 2560):
    """Two layers, 2 bytes a token and layer: blocks of 1024 bytes. 2560 tokens are 5 blocks of each layer."""
    from dataclasses import replace

    system = replace(one_level("ring", 2), tiers=(MEMORY, DISK))
    requests = requests_of([0], [prompt], [output])
    return offloaded(
        requests, NOTHING, system, path=path, memory_bytes=1024 * blocks, layers=2, token_bytes=4.0
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
