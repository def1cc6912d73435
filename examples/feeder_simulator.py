"""A whole simulator in forty lines, to copy: list scheduling with one lane for each kind of node on every rank.

python examples/feeder_simulator.py run/trace
"""

import sys
from collections import Counter, defaultdict
from heapq import heappop, heappush

import etude
from etude.extend import Kind, feeder


def simulate(job: etude.Job, *, bytes_per_ns: float = 50.0, latency_ns: int = 1000) -> int:
    """The time at which the last node of the job ends, in ns."""
    feed = feeder(job)
    everyone = tuple(feed.ranks.tolist())
    events: list[tuple[int, int, int]] = []  # (end, rank, node); equal ends are taken by rank, then by row
    lane_free_ns: Counter[tuple[int, Kind]] = Counter()
    calls: Counter[tuple[object, ...]] = Counter()
    met: defaultdict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
    now_ns, touched = 0, set(everyone)
    while touched:
        for rank in sorted(touched):
            while (row := feed.next(rank)) is not None:
                node = feed.node(rank, row)
                parties, needed, cost_ns = [(rank, row)], 1, node.duration_ns or 0
                if node.kind in (Kind.COLL, Kind.SEND, Kind.RECV):  # begins when all who take part have come to it
                    src, dst = (rank if r is None else r for r in (node.src, node.dst))
                    members = (node.group or everyone) if node.kind == Kind.COLL else (src, dst, node.tag)
                    calls[rank, node.kind, members] += 1
                    parties = met[node.kind == Kind.COLL, members, calls[rank, node.kind, members]]
                    parties.append((rank, row))
                    needed = len(members) if node.kind == Kind.COLL else 2
                    cost_ns = latency_ns + int((node.in_bytes or 0) / bytes_per_ns)
                if len(parties) == needed:
                    lanes = [(r, feed.node(r, n).kind) for r, n in parties]
                    end_ns = max(now_ns, *(lane_free_ns[lane] for lane in lanes)) + cost_ns
                    for lane, (r, n) in zip(lanes, parties, strict=True):
                        lane_free_ns[lane] = end_ns
                        heappush(events, (end_ns, r, n))
        touched.clear()
        while events and (events[0][0] == now_ns or not touched):  # all completions of an instant, then issue
            now_ns, rank, row = heappop(events)
            feed.complete(rank, row)
            touched.add(rank)
    feed.expect_done()  # else: a deadlock, with the names of those who wait
    return now_ns


if __name__ == "__main__":
    print(simulate(etude.open(sys.argv[1])), "ns")
