"""Moves the flows of `etude convert job/ flows.csv --to flows` and writes when each started and ended:

    python examples/flow_times.py flows.csv times.csv --rate 50e9 --latency-ns 500

Every rank has a link to one switch and one back; flows share them max-min fairly, as in network_program.py. In its
place may be any simulator that honours `start_ns` (not before) and `after` (flows that have to arrive first).
`etude simulate job/ --system NAME --flow-times times.csv` takes the result.
"""

import argparse
import csv

from network_program import Network


def moved(flows, rate, latency_ns):
    """(start, end) of each flow, in order."""
    ranks = 1 + max(max(int(flow["src"]), int(flow["dst"])) for flow in flows)
    network = Network([[0, 0, rate, latency_ns] for _ in range(2 * ranks)], shared=True)
    waits = [set(map(int, flow["after"].split())) for flow in flows]
    followers = [[] for _ in flows]
    for number, before in enumerate(waits):
        for other in before:
            followers[other].append(number)
    start, end = [0] * len(flows), [0] * len(flows)

    def post(numbers, now):
        for number in numbers:
            flow = flows[number]
            start[number] = max(int(flow["start_ns"]), now)
            links = [int(flow["src"]), ranks + int(flow["dst"])]
            network.post([(number, start[number], None, None, int(flow["wire_bytes"]), links)])

    post([number for number, before in enumerate(waits) if not before], 0)
    while True:
        now, arrived = network.advance(None)
        if not arrived:
            return list(zip(start, end, strict=True))
        for number in arrived:
            end[number] = now
            for follower in followers[number]:
                waits[follower].discard(number)
        ready = {follower for number in arrived for follower in followers[number] if not waits[follower]}
        post(sorted(ready), now)


def main():
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("flows")
    asked.add_argument("times")
    asked.add_argument("--rate", type=float, default=50e9, help="bytes a second of each link, one way")
    asked.add_argument("--latency-ns", type=int, default=500, help="of each link")
    given = asked.parse_args()
    with open(given.flows, newline="") as file:
        flows = list(csv.DictReader(file))
    with open(given.times, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["flow", "start_ns", "end_ns"])
        for number, (start, end) in enumerate(moved(flows, given.rate, given.latency_ns)):
            out.writerow([number, start, end])


if __name__ == "__main__":
    main()
