"""Tiers of memory: Little's law, residency, streaming and placing, worked by hand."""

import heapq
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.base.errors import ClusterError, UsageError
from etude.cost.tiers import POLICIES, copy_ns, file_ns, offload_rows, reside, resident_needed, streamed_ns
from etude.cost.tiers.placing import StoredPart, place
from etude.machine import open_device, open_system
from etude.machine.system import System
from etude.machine.tier import Tier

MEASURED = Path(__file__).resolve().parents[3] / "shared/measured/h200_extra/offload"


def system(*tiers: dict) -> System:
    level = {"name": "l", "kind": "switch", "size": 1, "bandwidth": "1GB/s"}
    return System.from_dict({"name": "s", "device": {"name": "d"}, "levels": [level], "tiers": list(tiers)})


def test_slots_limit_the_rate():
    tier = Tier(name="nvme", read_bytes_per_s=10e9, write_bytes_per_s=5e9, latency_ns=100_000.0, slots=32)
    assert tier.rate(4096) == pytest.approx(queued_rate(32, 4096, 100_000, 10.0), rel=0.01)  # 1.3 GB/s
    assert tier.rate(1 << 20) == 10e9 == pytest.approx(queued_rate(32, 1 << 20, 100_000, 10.0), rel=0.01)
    assert tier.rate(4096, requests=8) == pytest.approx(queued_rate(8, 4096, 100_000, 10.0), rel=0.01)
    assert tier.rate(4096, write=True) == 5e9


def queued_rate(slots: int, size: int, latency_ns: float, bytes_per_ns: float, requests: int = 8192) -> float:
    """Bytes per second of a queue, request by request: a slot is taken for the latency, bytes leave one after another
    at the rate, in the order of the requests."""
    free, sent_ns = [0.0] * slots, 0.0
    for _ in range(requests):
        sent_ns = max(heapq.heappop(free) + latency_ns, sent_ns + size / bytes_per_ns)
        heapq.heappush(free, sent_ns)
    return requests * size / sent_ns * 1e9


def fewest_misses(items: tuple[int, ...], room: int, held: frozenset[int] = frozenset()) -> int:
    """Every way to make room, tried."""
    if not items:
        return 0
    item, rest = items[0], items[1:]
    if item in held:
        return fewest_misses(rest, room, held)
    ways = [held] if len(held) < room else [held - {out} for out in held]
    return 1 + min(fewest_misses(rest, room, way | {item}) for way in ways)


@pytest.mark.parametrize("seed", range(8))
def test_belady_is_the_best_of_all_ways(seed: int):
    items, room = np.random.default_rng(seed).integers(0, 5, 11), 2 + seed % 2
    assert reside(items, room, "belady").misses == fewest_misses(tuple(items.tolist()), room)


def test_requests_of_a_file_wait_in_turn():
    disk = {"name": "disk", "read": "1GB/s", "write": "1GB/s", "latency": "1ms"}
    # 8 MB in 8 requests, two at a time: four latencies and 8 ms of bytes
    assert file_ns(system(disk), "disk", 8e6, write=False, request_bytes=1e6, threads=2) == pytest.approx(12e6)


def test_a_flush_goes_through_to_the_tier_below():
    cache = {"name": "cache", "read": "10GB/s", "write": "4GB/s", "below": "disk"}
    disk = {"name": "disk", "read": "1GB/s", "write": "2GB/s"}
    both = system(cache, disk)
    assert file_ns(both, "cache", 4e9, write=True) == pytest.approx(1e9)
    assert file_ns(both, "cache", 4e9, write=True, flush=True) == pytest.approx(3e9)
    assert file_ns(both, "cache", 4e9, write=False) == pytest.approx(4e9)


def test_what_does_not_fit_is_refused_with_the_numbers():
    with pytest.raises(ClusterError, match=r"room for 1,000,000 bytes, but 2,000,000"):
        file_ns(system({"name": "t", "capacity": "1MB", "read": "1GB/s", "write": "1GB/s"}), "t", 2e6, write=True)
    with pytest.raises(UsageError, match=r"2,000 bytes must be on the device, which has room for 1,000"):
        place([StoredPart(name="w", size_bytes=10.0)], 1000.0, 2000.0)


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        ([("a", "b"), ("b", "a")], r"a cycle: a > b > a"),
        ([("a", "a")], r"a cycle: a > a"),
        ([("a", "c")], r"`a` is above `c`, which is not a tier"),
        ([("a", ""), ("a", "")], r"two have the same name"),
    ],
)
def test_bad_tiers_are_refused(tiers: list[tuple[str, str]], message: str):
    with pytest.raises(ClusterError, match=message):
        system(*({"name": n, "below": b, "read": "1GB/s", "write": "1GB/s"} for n, b in tiers))


def test_unknown_tiers_and_links_are_refused():
    with pytest.raises(ClusterError, match="has no tier `nvme`"):
        file_ns(system(), "nvme", 1.0, write=False)
    with pytest.raises(ClusterError, match="does not specify its link to the host"):
        copy_ns(system().device, "h2d", 1.0)
    with pytest.raises(UsageError, match="unknown direction `up`"):
        copy_ns(open_device("h200"), "up", 1.0)


def test_a_copy_has_a_floor_and_a_rate():
    h200 = open_device("h200")
    assert copy_ns(h200, "h2d", 4096) == copy_ns(h200, "h2d", 8192)
    more = copy_ns(h200, "h2d", 2e9) - copy_ns(h200, "h2d", 1e9)
    assert more == pytest.approx(1e9 / 55.4, rel=1e-6)


@pytest.mark.parametrize(("compute", "load"), [(10.0, 3.0), (3.0, 10.0), (5.0, 5.0)])
def test_double_buffers_hide_all_but_one_layer(compute: float, load: float):
    took = streamed_ns(np.full(16, compute), np.full(16, load), 2)
    assert took == 16 * max(compute, load) + min(compute, load)
    assert streamed_ns(np.full(16, compute), np.full(16, load), 1) == 16 * (compute + load)
    assert streamed_ns(np.full(16, compute), np.zeros(16), 2) == 16 * compute


def test_uneven_layers_one_ahead():
    # l1 + max(c1, l2) + max(c2, l3) + c3 = 1 + 5 + 4 + 2
    assert streamed_ns(np.array([3.0, 4.0, 2.0]), np.array([1.0, 5.0, 2.0]), 2) == 12


def test_the_smallest_resident_part():
    # 700 MB a layer, 50 bytes per ns, 7 ms: half of a layer has to be there.
    assert resident_needed(700e6, 7e6, 50.0) == pytest.approx(0.5)
    # 100 MB of collectives inside the 7 ms: 250 of 700 MB can be loaded; in series they do not matter.
    assert resident_needed(700e6, 7e6, 50.0, 100e6) == pytest.approx(450 / 700)
    assert resident_needed(700e6, 7e6, 50.0, 100e6, in_series=True) == pytest.approx(0.5)
    assert resident_needed(700e6, 20e6, 50.0) == 0.0
    assert resident_needed(700e6, 1e6, 50.0, 100e6) is None
    # At that part nothing stalls in the steady state: each layer takes its compute.
    loads = np.full(50, 0.5 * 700e6 / 50)
    assert streamed_ns(np.full(50, 7e6), loads, 2) == pytest.approx(50 * 7e6 + 7e6)


def naive_lru(items: list[int], room: int) -> int:
    held: list[int] = []
    misses = 0
    for item in items:
        if item in held:
            held.remove(item)
        else:
            misses += 1
            if len(held) == room:
                held.pop(0)
        held.append(item)
    return misses


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 7), max_size=40), st.integers(1, 5))
def test_belady_misses_least(items: list[int], room: int):
    found = {policy: reside(np.array(items, np.int64), room, policy).misses for policy in POLICIES}
    assert found["lru"] == naive_lru(items, room)
    others = [misses for policy, misses in found.items() if policy != "pinned"]
    assert found["belady"] == min(others)
    assert all(misses >= len(set(items)) for misses in found.values())
    assert all(reside(np.array(items, np.int64), 8, policy).misses == len(set(items)) for policy in POLICIES)


def test_policies_by_hand():
    items = np.array([0, 1, 2, 0, 1, 2])
    assert reside(items, 2, "lru").misses == 6
    assert reside(items, 2, "belady").misses == 4
    assert reside(items, 2, "pinned").misses == 4  # 0 and 1 stay, 2 passes twice
    writes = np.array([1, 0, 0, 0, 0, 0], bool)
    assert reside(items, 2, "lru", writes).stores == 1
    assert reside(items, 2, "lru").misses == 6


@pytest.mark.parametrize(("room", "policy", "message"), [(0, "lru", "room for 0"), (1, "random", "unknown policy")])
def test_bad_residency_is_refused(room: int, policy: str, message: str):
    with pytest.raises(UsageError, match=message):
        reside(np.array([1]), room, policy)


def test_placing_is_never_slower_with_more_room():
    parts = [StoredPart(name="dense", size_bytes=4.0), StoredPart(name="experts", size_bytes=16.0, use=0.125)]
    times = [place(parts, room).token_ns(1e9, (0.1e9,)) for room in range(25)]
    assert all(b <= a for a, b in itertools.pairwise(times))
    assert times[0] == pytest.approx(6 / 0.1)  # 4 + 2 bytes, all from below
    assert times[4] == pytest.approx(4 + 20)  # the dense part first
    assert times[20] == times[24] == pytest.approx(6.0)
    # Two ways below share the reads.
    assert place(parts, 0.0).token_ns(1e9, (0.1e9, 0.2e9)) == pytest.approx(20)


@pytest.mark.skipif(not MEASURED.is_dir(), reason="no measured transfers beside the checkout")
@pytest.mark.parametrize("name", ["transfer", "disk", "checkpoint", "layer_stream"])
def test_measured_rows(name: str):
    rows = offload_rows(open_system("h200-server"), MEASURED / f"{name}.csv")
    errors = [abs(r["predicted"] / r["measured"] - 1) for r in rows]
    assert sum(errors) / len(errors) < 0.1
    double = [e for r, e in zip(rows, errors, strict=True) if r["what"] == "double buffered"]
    assert max(double, default=0.0) < 0.03


def test_a_file_of_no_kind_is_refused(tmp_path: Path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="columns of a known kind"):
        offload_rows(open_system("h200-server"), tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("h2d,pinned,-5,3", "row 0: .*`bytes`: -5 is out of range"),
        ("up,pinned,5,3", "`direction`: unknown `up`"),
        ("h2d,frozen,5,3", "`memory`: unknown `frozen`"),
    ],
)
def test_rows_that_cannot_be_are_refused(tmp_path: Path, row: str, message: str):
    (tmp_path / "x.csv").write_text(f"direction,memory,bytes,ns_median\n{row}\n")
    with pytest.raises(UsageError, match=message):
        offload_rows(open_system("h200-server"), tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text("direction,memory,bytes,ns_median\nh2d,pinned,5e9,\n")
    (found,) = offload_rows(open_system("h200-server"), tmp_path / "x.csv")
    assert found["measured"] is None and found["predicted"] == pytest.approx(5e9 / 55.4, rel=0.03)
