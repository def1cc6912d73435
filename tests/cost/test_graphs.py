"""Graph networks out of core: bytes against naive walks over the drawn graph."""

from dataclasses import replace

import numpy as np
import pytest

from etude.base.errors import FormatError, UsageError
from etude.cost.tiers.graph_parts import GraphEdges, parted
from etude.cost.tiers.graph_time import pass_time
from etude.cost.tiers.graphs import FeatureGraph, out_of_core
from etude.cost.tiers.streaming import staged_ns
from etude.machine import open_device, open_system

SMALL = FeatureGraph(nodes=60, edges=400, partitions=6, feature_bytes=100, locality=0.6, seed=3)
EVERYTHING = 10**9


def needs(graph: FeatureGraph) -> list[set[int]]:
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


def spilled(graph: FeatureGraph, room: int) -> int:
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


def test_time_of_stages_that_work_side_by_side():
    found = out_of_core(SMALL, layers=1, room_bytes=EVERYTHING, read="partitions")
    server, host = open_system("h200-server"), open_device("xeon-8480")
    took = pass_time(found, server, "disk", host)
    assert took.tier_ns == pytest.approx(6000 / 3.5 + 6000 / 2.7)
    stages = (took.tier_ns, took.host_ns, took.link_ns, took.compute_ns)
    assert min(stages) > 0
    assert max(stages) <= took.time_ns <= sum(stages)
    slow = server.replace(tiers=tuple(replace(t, read_bytes_per_s=1e3) for t in server.tiers))
    waits = pass_time(found, slow, "disk", host)
    assert waits.time_ns == pytest.approx(waits.tier_ns, rel=1e-3)  # all else hides behind the tier
    # 2 requests of 1,000 B in 50 us
    slots = server.replace(tiers=tuple(replace(t, latency_ns=50_000, slots=2) for t in server.tiers))
    assert pass_time(found, slots, "disk", host).tier_ns == pytest.approx(6000 / 0.04 + 6000 / 2.7)
    stream = out_of_core(SMALL, layers=2, room_bytes=100 * 20, read="stream")
    assert int(stream.steps.nodes.sum()) == 2 * 60 and int(stream.steps.edges.sum()) == 2 * 400


def test_stages_by_hand():
    # 0..2, 2..4 | 4..6; the second stage 2..7, 7..12, 12..17: the third item waits for a buffer until 7
    assert staged_ns(np.array([[2.0, 2, 2], [5, 5, 5]])) == 17
    assert staged_ns(np.array([[5.0, 5, 5], [2, 2, 2]])) == 17
    # one buffer: what is behind must be done before the next is begun
    assert staged_ns(np.array([[2.0, 2, 2], [5, 5, 5]]), buffers=1) == 21
    assert staged_ns(np.array([[1.0, 1], [3, 3], [2, 2]])) == 9  # 0..1 1..2 | 1..4 4..7 | 4..6 7..9
    with pytest.raises(UsageError, match="buffers do not match"):
        staged_ns(np.zeros((0, 2)))


def test_degrees_by_a_power_law():
    """The k-th largest degree of weights k**(-1/(a - 1)) falls off with the same power."""
    graph = FeatureGraph(
        nodes=20_000, edges=400_000, partitions=20, feature_bytes=4, exponent=2.5, locality=0.7, reach=2
    )
    source, target = graph.drawn()
    for ends in (source, target):
        degree = np.sort(np.bincount(ends, minlength=graph.nodes))[::-1]
        slope = np.log(degree[999] / degree[99]) / np.log(10)
        assert slope == pytest.approx(-1 / 1.5, abs=0.1)
    part = source // 1000, target // 1000
    assert (part[0] == part[1]).mean() == pytest.approx(0.7, abs=0.01)
    away = (part[0] - part[1]) % 20
    assert set(np.unique(away).tolist()) == {0, 1, 2, 18, 19}


def test_a_partitioner_finds_what_belongs_together():
    """Eight rings of 25 nodes, numbered at random: parts of one ring each have no edge between them."""
    names = np.random.default_rng(1).permutation(200)
    at = np.arange(200)
    ahead = at // 25 * 25 + (at + 1) % 25
    more = at // 25 * 25 + (at + 3) % 25
    edges = GraphEdges(names[np.append(at, at)], names[np.append(ahead, more)])
    found = parted(edges, 200, 8, "greedy")
    assert np.bincount(np.unique(np.concatenate(found.edges)) // 25).tolist() == [25] * 8
    degrees = [np.sort(np.bincount(e.source, minlength=200)).tolist() for e in (edges, found.edges)]
    assert degrees[0] == degrees[1]
    inside = [(e.source // 25 == e.target // 25).mean() for e in (edges, found.edges)]
    assert inside[1] > 2 * inside[0]
    assert found.held_bytes == 8 * (201 + 4 * 200 + 200 + 8 * 8)
    assert parted(edges, 200, 8, "order") == (edges, 0)


def test_a_graph_of_a_file(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text("source,target,weight\n0,1,5\n1,2,5\n4,0,5\n")
    graph = FeatureGraph.read(path, partitions=3, feature_bytes=10)
    assert (graph.nodes, graph.edges) == (6, 3)  # 5 in three parts, and one to fill up
    found = out_of_core(graph, layers=1, room_bytes=1000, read="partitions")
    assert found.read_bytes == 2 * 2 * 10  # parts 0 and 2; nothing needs part 1
    assert found.used_bytes == 3 * 10
    for text, told in (
        ("a,b\n1,2\n", "no edges"),
        ("source,target\n1,x\n", "no edges"),
        ("source,target\n-1,2\n", "negative"),
    ):
        path.write_text(text)
        with pytest.raises(FormatError, match=told):
            FeatureGraph.read(path, partitions=1, feature_bytes=1)
    with pytest.raises(UsageError, match=r"none\.csv"):
        FeatureGraph.read(tmp_path / "none.csv", partitions=1, feature_bytes=1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"read": "guess"}, "unknown method of reading"),
        ({"read": "partitions", "room_bytes": 10}, "a part of 1 kB does not fit 10 B"),
        ({"read": "stream", "train": True}, "only to inference"),
        ({"read": "stream", "room_bytes": 10}, "a sum of 100 B does not fit"),
    ],
)
def test_bad_input_is_refused(given: dict, told: str):
    with pytest.raises(UsageError, match=told):
        out_of_core(SMALL, **{"layers": 1, "room_bytes": 10_000, **given})
    with pytest.raises(UsageError, match="exponent"):
        FeatureGraph(nodes=10, edges=5, partitions=2, feature_bytes=1, exponent=1.5)
    with pytest.raises(UsageError, match="unknown partitioner"):
        parted(GraphEdges(*SMALL.drawn()), 60, 6, "metis")
    with pytest.raises(UsageError, match="equal parts"):
        FeatureGraph(nodes=10, edges=5, partitions=3, feature_bytes=1)
