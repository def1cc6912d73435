"""Graph networks out of core: bytes against naive walks over the drawn graph."""

import numpy as np
import pytest

from etude.cost.tiers.graphs import Graph, out_of_core
from etude.errors import UsageError
from etude.machine import open_system

SMALL = Graph(nodes=60, edges=400, partitions=6, feature_bytes=100, locality=0.6, seed=3)
EVERYTHING = 10**9


def needs(graph: Graph) -> list[set[int]]:
    """Nodes whose features each part needs."""
    source, target = graph.drawn()
    size = graph.nodes // graph.partitions
    found: list[set[int]] = [set() for _ in range(graph.partitions)]
    for s, t in zip(source.tolist(), target.tolist(), strict=True):
        found[t // size].add(s)
    return found


def lru_misses(accesses: list[int], room: int) -> int:
    held: list[int] = []
    misses = 0
    for item in accesses:
        if item in held:
            held.remove(item)
        else:
            misses += 1
            held = held[1:] if len(held) == room else held
        held.append(item)
    return misses


@pytest.mark.parametrize("room", [1, 2, 4, 6])
def test_parts_through_a_cache(room: int):
    """Two layers, 10 nodes of 100 B in a part; features of the second layer are others than those of the first."""
    parts = [sorted({node // 10 for node in need}) for need in needs(SMALL)]
    accesses = [6 * layer + q for layer in range(2) for need in parts for q in need]
    found = out_of_core(SMALL, layers=2, room_bytes=1000 * room, read="partitions")
    assert found.read_bytes == 1000 * lru_misses(accesses, room)
    assert found.written_bytes == 2 * 60 * 100
    assert found.used_bytes == 2 * 100 * sum(len(need) for need in needs(SMALL))


def test_pages_through_a_cache():
    pages = [sorted({node // 4 for node in need}) for need in needs(SMALL)]
    found = out_of_core(SMALL, layers=1, room_bytes=5 * 400, read="gather", page_bytes=400)
    assert found.read_bytes == 400 * lru_misses([q for need in pages for q in need], 5)
    assert found.amplification == found.read_bytes / (100 * sum(len(need) for need in needs(SMALL)))


def test_with_room_for_all_each_part_is_read_once_a_layer():
    for policy in ("lru", "belady", "pinned"):
        assert (
            out_of_core(SMALL, layers=3, room_bytes=EVERYTHING, read="partitions", policy=policy).read_bytes == 18_000
        )


def walked(room: int, *, regather: bool) -> tuple[int, int]:
    """(bytes read, bytes of gathered features written) of two layers of training through a room, longest unused out."""
    parts = [sorted({node // 10 for node in need}) for need in needs(SMALL)]
    kept = {("kept", layer, p): 100 * len(needs(SMALL)[p]) for layer in range(2) for p in range(6)}
    walk = []
    for layer in range(2):
        for p in range(6):
            walk += [((layer, q), 1000, False) for q in parts[p]]
            walk += [] if regather else [(("kept", layer, p), kept["kept", layer, p], True)]
    for layer in (1, 0):
        if regather:
            walk += [((layer, q), 1000, False) for p in range(6) for q in parts[p]]
        else:
            walk += [(("kept", layer, p), kept["kept", layer, p], False) for p in reversed(range(6))]
    held: dict = {}
    read = written = 0
    for number, (item, size, makes) in enumerate(walk):
        if size > room:
            read, written = read + size * (not makes), written + size * makes
            continue
        if item in held:
            held.pop(item)
        elif not makes:
            read += size
        while sum(held.values()) + size > room:
            gone = next(iter(held))
            used = any(one == gone and not made for one, _, made in walk[:number])
            written += held.pop(gone) * (gone[0] == "kept" and not used)
        held[item] = size
    return read, written


@pytest.mark.parametrize("room", [1000, 4000, 9000, 20_000, EVERYTHING])
@pytest.mark.parametrize("regather", [False, True])
def test_training_keeps_what_it_gathered_or_gathers_again(room: int, regather: bool):
    found = out_of_core(SMALL, layers=2, room_bytes=room, read="partitions", train=True, regather=regather)
    read, spilled = walked(room, regather=regather)
    assert (found.read_bytes, found.spilled_bytes) == (read, spilled)
    assert found.written_bytes == 2 * 60 * 100 + spilled
    if room == EVERYTHING:
        assert (read, spilled) == (12_000, 0)


def spilled(graph: Graph, room: int) -> int:
    """Sums that leave before they are complete, message by message in the order of sources."""
    source, target = graph.drawn()
    items = target[np.argsort(source, kind="stable")].tolist()
    left = {t: items.count(t) for t in items}
    held: list[int] = []  # the one used longest ago first
    out = 0
    for t in items:
        left[t] -= 1
        if t in held:
            held.remove(t)
        elif len(held) == room:
            gone = min(held, key=lambda h: left[h])
            held.remove(gone)
            out += left[gone] > 0
        held.append(t)
    return out


@pytest.mark.parametrize("room", [1, 5, 20, 60])
def test_a_stream_reads_all_once_and_what_was_spilled(room: int):
    found = out_of_core(SMALL, layers=2, room_bytes=100 * room, read="stream")
    assert found.spilled_bytes == 2 * 100 * spilled(SMALL, room)
    assert found.read_bytes == 2 * 60 * 100 + found.spilled_bytes
    assert found.written_bytes == 2 * 60 * 100 + found.spilled_bytes
    assert room < 60 or found.spilled_bytes == 0


def test_time_is_bytes_over_the_rates_of_the_tier():
    found = out_of_core(SMALL, layers=1, room_bytes=EVERYTHING, read="partitions")
    assert found.time_ns(open_system("h200-server"), "disk") == pytest.approx(6000 / 3.5 + 6000 / 2.7)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"read": "guess"}, "no such way to read"),
        ({"read": "partitions", "room_bytes": 10}, "a part of 1 kB does not fit 10 B"),
        ({"read": "stream", "train": True}, "of inference"),
        ({"read": "stream", "room_bytes": 10}, "a sum of 100 B does not fit"),
    ],
)
def test_bad_input_is_refused(given: dict, told: str):
    with pytest.raises(UsageError, match=told):
        out_of_core(SMALL, **{"layers": 1, "room_bytes": 10_000, **given})
    with pytest.raises(UsageError, match="equal parts"):
        Graph(nodes=10, edges=5, partitions=3, feature_bytes=1)
