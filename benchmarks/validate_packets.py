"""The network of packets beside a public packet simulator, and its speed.

    python benchmarks/validate_packets.py --shared ../shared

Each run of htsim: over the paths that its flows took where these are known, else as the mean over five seeds of random
ways. Rules were written looking at one half of the runs; the other, by a hash of the name of the run, was kept back.
Errors are of the mean and of the longest flow. The last line is an all-to-all of 32 hosts on one
switch, 8 MB between each two.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import time
from pathlib import Path

import numpy as np

from etude.base.errors import EtudeError
from etude.decide.score.kind import Item, ScoreRequest
from etude.decide.score.packets import FabricRun, predict
from etude.run.simulate.packets.alone import PacketFlow, PacketLinks, run_flows
from etude.run.simulate.packets.state import PacketRules

ROCE = PacketRules(
    payload_bytes=4096, header_bytes=64, answer_bytes=64, pads=False, answers=True,
    pause_bytes=61_440, resume_bytes=49_152, mark_bytes=0, notice_ps=0, raise_ps=0,
)  # fmt: skip


def kept_back(run: str) -> bool:
    return int(hashlib.sha256(run.encode()).hexdigest(), 16) % 2 == 1


def compare(folder: Path, senders: str) -> None:
    found: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    counts: dict[tuple[str, bool], dict[str, list[float]]] = {}
    alike: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    left = 0
    with (folder / "runs.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if not senders or row["protocol"] in senders.split(",")]
    for row in rows:
        try:
            one = predict(Item(row["run_id"], FabricRun(row, folder)), ScoreRequest())
        except EtudeError as problem:
            left += 1
            print(f"{row['run_id']} is not compared: {problem}")
            continue
        key = row["protocol"], kept_back(row["run_id"])
        off = [abs(one.predicted[f] / one.measured[f] - 1) for f in ("fct_mean_us", "fct_max_us")]
        found.setdefault(key, []).append((off[0], off[1]))
        for name, counter in (("pauses", "pfc_pauses"), ("trims or NACKs", "nacks")):
            counted = counts.setdefault(key, {}).setdefault(name, [0.0, 0.0])
            counted[0] += one.predicted.get(counter, 0.0)
            counted[1] += one.measured.get(counter, 0.0)
        case = tuple(row[name] for name in CASE)
        alike.setdefault(case, []).append((one.measured["fct_mean_us"], one.predicted["fct_mean_us"]))
    for key in sorted(found):
        mean, most = np.array(found[key]).T * 100
        counted_text = "".join(
            f"  {name} {both[0]:,.0f}, measured {both[1]:,.0f}" for name, both in counts[key].items() if any(both)
        )
        print(
            f"{key[0]:<10} {'kept back' if key[1] else 'looked at'} {len(mean):>3} runs"
            f"  mean: median {np.median(mean):.2f}%, p90 {np.percentile(mean, 90):.2f}%, worst {mean.max():.2f}%"
            f"  longest: p90 {np.percentile(most, 90):.2f}%, worst {most.max():.2f}%{counted_text}"
        )
    print(f"{left} of {len(rows)} runs are not compared")
    orders(alike)


CASE = ("pattern", "topology", "link_gbps", "hop_latency_us", "switch_latency_us", "size", "seed")
APART = 0.05


def orders(alike: dict[tuple[str, ...], list[tuple[float, float]]]) -> None:
    """Pairs of senders, routings and variants on the same flows whose measured means are apart."""
    same = pairs = 0
    for runs in alike.values():
        for i, (a, x) in enumerate(runs):
            for b, y in runs[:i]:
                if abs(a - b) > APART * min(a, b):
                    pairs += 1
                    same += (a < b) == (x < y)
    print(f"order of senders and routings on the same flows, {APART:.0%} apart or more: {same} of {pairs} pairs")


def all_to_all(hosts: int = 32, size_bytes: int = 8_000_000) -> None:
    wires = PacketLinks(
        bytes_per_s=np.full(2 * hosts, 50e9),
        wire_ps=np.full(2 * hosts, 500_000),
        switch_ps=np.full(2 * hosts, 300_000),
        to_switch=np.repeat([1, 0], hosts),
    )
    flows = [
        PacketFlow(path=(a, hosts + b), back=(b, hosts + a), size_bytes=size_bytes)
        for a in range(hosts)
        for b in range(hosts)
        if a != b
    ]
    run_flows(wires, flows[:2], ROCE)
    begin = time.process_time()
    done = run_flows(wires, flows, ROCE)
    took = time.process_time() - begin
    print(
        f"all-to-all of {hosts} hosts: {done.packets:,} packets, {done.events:,} events in {took:.1f} CPU s,"
        f" {done.events / took / 1e6:.1f} million a second; {done.delivered_ps.max() / 1e9:.3f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="folder of the reference data")
    parser.add_argument("--senders", default="", help="only these, with commas between them")
    given = parser.parse_args()
    folder = given.shared / "oracle/htsim"
    if folder.exists():
        compare(folder, given.senders)
    else:
        print(f"there is no {folder}")
    all_to_all()


if __name__ == "__main__":
    main()
