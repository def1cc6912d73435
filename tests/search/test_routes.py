"""Requests of satellites: against a twin that tries every path, and by hand."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.decide.search import search
from etude.decide.search.constellation import Constellation, Sky, generated, positions, read_sky, sky_of
from etude.decide.search.links import NEVER
from etude.decide.search.spaces.routes import delays
from etude.decide.search.travel_kernels import DELAY, HOME, LEAST, LOCAL, NEAREST, SHARE, TravelRequests, travelled
from etude.surface.cli import main

SPACE = """
search: routes
topology: {rate: 100Mb/s}
computing: 6
small: {time: 30ms}
large: {time: 8ms}
requests: {rate: 200, size: 150kB, duration: 5s, sources: 12}
"""


def paths(sky: Sky, graph: int, node: int, end: int, seen: tuple[int, ...] = ()) -> Iterator[list[int]]:
    """Rows of links of every way that meets no satellite twice."""
    if node == end:
        yield []
        return
    for e in range(int(sky.first[graph, node]), int(sky.first[graph, node + 1])):
        other = int(sky.to[graph, e])
        if other not in (*seen, node):
            for rest in paths(sky, graph, other, end, (*seen, node)):
                yield [e, *rest]


def naive(
    sky: Sky, load: TravelRequests, small: list[int], large: dict[int, int], policy: int
) -> list[tuple[int, int]]:
    """(server, delay) of each request."""
    free: dict[int, int] = {}
    small_at, large_at = dict.fromkeys(range(len(small)), 0), dict.fromkeys(large, 0)
    found = []
    for now, home, size, graph in zip(*(column.tolist() for column in load), strict=True):

        def arrival(path: list[int], now: int = now, size: int = size, graph: int = graph) -> int:
            for e in path:
                start = max(now, free.get(int(sky.link[graph, e]), 0))
                now = start + -(-size * 10**9 // int(sky.rate[graph, e])) + int(sky.latency_ns[graph, e])
            return now

        local = max(small_at[home], now) + small[home]
        options: list[tuple[int, int, list[int]]] = []
        for c, took in large.items():
            ways = list(paths(sky, graph, home, c))
            if ways and policy == NEAREST:
                way = min(ways, key=lambda w: sum(int(sky.latency_ns[graph, e]) for e in w))
                options.append((sum(int(sky.latency_ns[graph, e]) for e in way), c, way))
            elif ways:
                way = min(ways, key=arrival)
                options.append((max(arrival(way), large_at[c]) + took, c, way))
        if policy == LEAST and options:
            options = [(max(large_at[c], now) + large[c], c, way) for _, c, way in options]
        best = min(options, key=lambda o: o[0], default=None)
        if best is None or policy == LOCAL or (policy in (DELAY, LEAST) and local <= best[0]):
            small_at[home] = local
            found.append((HOME, local - now))
            continue
        _, c, way = best
        then = now
        for e in way:
            start = max(then, free.get(int(sky.link[graph, e]), 0))
            free[int(sky.link[graph, e])] = start + -(-size * 10**9 // int(sky.rate[graph, e]))
            then = free[int(sky.link[graph, e])] + int(sky.latency_ns[graph, e])
        large_at[c] = max(then, large_at[c]) + large[c]
        found.append((c, large_at[c] - now))
    return found


def random_case(rng: np.random.Generator) -> tuple[Sky, TravelRequests, list[int], dict[int, int]]:
    nodes = int(rng.integers(2, 6))
    graphs = []
    for s in range(2):
        edges = [
            (a, b, int(rng.integers(1, 10**6)), int(rng.integers(10**6, 10**8)))
            for a in range(nodes) for b in range(a + 1, nodes) if rng.random() < 0.6
        ]  # fmt: skip
        graphs.append((s * 5 * 10**6, edges))
    sky = sky_of(graphs, nodes)
    at = np.sort(rng.integers(0, 10**7, 30))
    load = TravelRequests(
        at, rng.integers(0, nodes, 30), rng.integers(1000, 10**5, 30), (at >= 5 * 10**6).astype(np.int64)
    )
    small = rng.integers(10**5, 10**6, nodes).tolist()
    large = {int(c): int(rng.integers(10**5, 10**6)) for c in rng.choice(nodes, int(rng.integers(1, 3)), replace=False)}
    return sky, load, small, large


@pytest.mark.parametrize("policy", [LOCAL, NEAREST, LEAST, DELAY])
def test_requests_go_as_if_every_path_was_tried(policy: int):
    rng = np.random.default_rng(policy)
    for _ in range(25):
        sky, load, small, large = random_case(rng)
        slow = np.full(len(small), NEVER)
        slow[list(large)] = list(large.values())
        done = travelled(sky, load, np.array(small), slow, policy, np.zeros(len(small)))
        wanted = naive(sky, load, small, large, policy)
        assert list(zip(done.server.tolist(), delays(done).tolist(), strict=True)) == wanted


def line(rate: int, latency_ns: int) -> Sky:
    return sky_of([(0, [(0, 1, latency_ns, rate), (1, 2, latency_ns, rate)])], 3)


def test_a_path_by_hand():
    # 1,000 bytes at 1 MB/s are 1 ms a link, then 2 ms on the way; the second request waits 1 ms for the first link,
    # arrives at the second link when that is free again, and waits for the large model: 6 + 5, 7 + 4 + 5.
    load = TravelRequests(*(np.array(c) for c in ([0, 0], [0, 0], [1000, 1000], [0, 0])))
    large = np.array([NEVER, NEVER, 5 * 10**6])
    done = travelled(line(10**6, 2 * 10**6), load, np.full(3, 10**9), large, DELAY, np.zeros(3))
    assert done.server.tolist() == [2, 2]
    assert done.sending_ns.tolist() == [2 * 10**6] * 2
    assert done.latency_ns.tolist() == [4 * 10**6] * 2
    assert done.queue_ns.tolist() == [0, 10**6]
    assert done.wait_ns.tolist() == [0, 4 * 10**6]
    assert delays(done).tolist() == [11 * 10**6, 16 * 10**6]


def test_no_links_are_local_and_endless_ones_the_least_loaded():
    rng = np.random.default_rng(1)
    at = np.sort(rng.integers(0, 10**9, 300))
    load = TravelRequests(at, rng.integers(0, 2, 300), np.full(300, 10**5), np.zeros(300, np.int64))
    small, large = np.array([7_000_003, 7_000_003, 7_000_003]), np.array([NEVER, NEVER, 4_000_001])
    none = [travelled(line(0, 5), load, small, large, policy, np.full(3, 0.5)) for policy in range(5)]
    assert all((one.server == HOME).all() and (delays(one) == delays(none[LOCAL])).all() for one in none)
    done = travelled(line(NEVER, 0), load, small, large, DELAY, np.zeros(3))
    small_at, large_at, wanted = [0, 0], 0, []
    for now, home in zip(at.tolist(), load.home.tolist(), strict=True):
        here, there = max(small_at[home], now) + 7_000_003, max(large_at, now) + 4_000_001
        if here <= there:
            small_at[home] = here
        else:
            large_at = there
        wanted.append(min(here, there) - now)
    assert delays(done).tolist() == wanted
    least = travelled(line(NEVER, 0), load, small, large, LEAST, np.zeros(3))
    assert delays(least).tolist() == wanted


def test_shares_are_kept():
    load = TravelRequests(np.arange(100) * 10**9, np.zeros(100, np.int64), np.full(100, 1000), np.zeros(100, np.int64))
    for share in (0.0, 0.25, 0.5, 1.0):
        done = travelled(line(10**9, 0), load, np.full(3, 5), np.array([NEVER, NEVER, 5]), SHARE, np.full(3, share))
        assert (done.server == 2).sum() == 100 * share


def test_the_constellation():
    spec = Constellation()
    places = positions(spec, 1234.5)
    assert np.linalg.norm(places, axis=1) == pytest.approx(6371 + 780)
    assert positions(spec, 6018.13) == pytest.approx(positions(spec, 0.0), abs=1)  # once around, 2 pi sqrt(7151^3 / mu)
    sky = generated(spec, 3600 * 10**9)
    assert sky.first.shape == (60, 67)
    counts = np.diff(sky.first[:, [0, -1]]).ravel() // 2
    assert counts.min() >= 66
    assert counts.max() <= 66 + 55
    assert len(set(counts.tolist())) > 1  # links between planes come and go
    # neighbours of a plane: 2 r sin(pi / 11) = 4,029 km of light
    within = [int(n) for e, n in enumerate(sky.latency_ns[0, : sky.first[0, -1]]) if sky.to[0, e] in (1,) and e < 4]
    assert within[0] == pytest.approx(13_440_000, rel=1e-3)
    still = generated(Constellation(every_ns=0), 3600 * 10**9)
    assert all((a[0] == b[0]).all() for a, b in zip(sky[1:], still[1:], strict=True) if a.shape[1] == b.shape[1])
    assert (still.first[0] == sky.first[0]).all()


def policies(found: Any) -> dict[str, dict[str, Any]]:
    return {row["policy"]: row for row in found.rows}


def test_a_static_topology_is_the_first_graph(tmp_path: Path):
    (tmp_path / "s.yaml").write_text(SPACE)
    still, moved = (search(tmp_path / "s.yaml", changed={"topology": {"every": every}}).rows for every in ("0s", "60s"))
    assert still == moved
    other = search(tmp_path / "s.yaml", changed={"topology": {"every": "1s"}})
    assert other.more["graphs"] == 5


def test_policies_of_a_constellation(tmp_path: Path):
    (tmp_path / "s.yaml").write_text(SPACE)
    found = search(tmp_path / "s.yaml")
    by = policies(found)
    assert found.best["policy"] == "delay"
    assert by["delay"]["mean_ms"] <= by["share"]["mean_ms"] <= by["local"]["mean_ms"]
    for row in found.rows:
        parts = sum(row[f"{name}_ms"] for name in ("latency", "sending", "queue", "wait", "service"))
        assert row["mean_ms"] == pytest.approx(parts)
    none = policies(search(tmp_path / "s.yaml", changed={"topology": {"rate": 0}}))
    assert all(row | {"policy": ""} == none["local"] | {"policy": ""} for row in none.values())
    free = policies(search(tmp_path / "s.yaml", changed={"topology": {"rate": "inf", "latency": "0s"}}))
    assert free["delay"]["mean_ms"] == free["least"]["mean_ms"]


def test_a_table_of_links_and_one_of_requests(tmp_path: Path):
    (tmp_path / "s.yaml").write_text("search: routes\ntopology: t.csv\ncomputing: [c]\nsmall: {time: 1s}\n"
                                     "large: {time: 5ms}\nrequests: r.csv\npolicy: [delay]\n")  # fmt: skip
    (tmp_path / "t.csv").write_text("time_s,from,to,latency,rate\n0,a,b,2ms,1MB/s\n0,b,c,2ms,1MB/s\n10,a,b,2ms,1MB/s\n")
    (tmp_path / "r.csv").write_text("time_s,satellite,size\n0,a,1kB\n0,a,1kB\n12,a,1kB\n")
    # 11 and 16 ms as worked out above; from 10 s on there is no way to c
    row = search(tmp_path / "s.yaml").best
    assert row["mean_ms"] == pytest.approx((11 + 16 + 1000) / 3)
    assert row["away"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("computing: 6", "computing: 0", "expected how many satellites compute"),
        ("computing: 6", "computing: [x]", "expected how many satellites compute"),
        ("{rate: 100Mb/s}", "{rate: fast}", "fast"),
        ("{rate: 100Mb/s}", "{plane: 6}", "unknown key `plane`"),
        ("{rate: 100Mb/s}", "none.csv", "`none.csv` does not exist"),
        ("{rate: 100Mb/s}", "3", "expected a table, or keys"),
        ("{time: 30ms}", "{time: 30ms, model: vgg16}", "either a `model` on a `device`, or a `time`"),
        ("sources: 12}", "sources: 12}\npolicy: far", "unknown policy `far`"),
        ("sources: 12}", "sources: 12}\nscore: p50", "unknown score `p50`"),
        ("sources: 12}", "sources: 12}\nmore: 1", "unknown key `more`"),
        ("150kB", "10GB", "larger than"),
        ("{rate: 200, size: 150kB, duration: 5s, sources: 12}", "none.csv", "`none.csv` does not exist"),
    ],
)
def test_what_is_wrong_is_told(old: str, new: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "s.yaml").write_text(SPACE.replace(old, new, 1))
    assert main(["search", str(tmp_path / "s.yaml")]) == 2
    assert told in capsys.readouterr().err


def test_same_seed_same_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "s.yaml").write_text(SPACE)
    said = []
    for seed in ("1", "1", "2"):
        assert main(["search", str(tmp_path / "s.yaml"), "--seed", seed, "--json"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != said[2]
    assert json.loads(said[0])["space"] == 5


EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "search"


def test_the_example():
    table, names = read_sky("leo_66.csv", EXAMPLES, "", 0)
    whole = generated(Constellation(every_ns=120 * 10**9), 240 * 10**9)
    assert len(names) == 66
    assert np.diff(table.first[:, [0, -1]]).tolist() == np.diff(whole.first[:, [0, -1]]).tolist()
    assert sorted(table.latency_ns.ravel().tolist()) == sorted(whole.latency_ns.ravel().tolist())
    assert search(EXAMPLES / "routes.yaml").best["policy"] == "delay"


def test_a_share_travels_where_that_is_not_slower(tmp_path: Path):
    """At 1 Gb/s a request is sent in 1.2 ms a hop, and is computed in 8 ms instead of 30: some travel. At 1 kb/s none
    does. Both times of service are told as they are given."""
    (tmp_path / "s.yaml").write_text(SPACE.replace("rate: 100Mb/s", "rate: 1Gb/s") + "policy: share\n")
    found = search(tmp_path / "s.yaml")
    assert 0 < found.best["away"] <= 1
    assert (found.more["small_ms"], found.more["large_ms"]) == (30, 8)
    (tmp_path / "s.yaml").write_text(SPACE.replace("rate: 100Mb/s", "rate: 1kb/s") + "policy: share\n")
    assert search(tmp_path / "s.yaml").best["away"] == 0
