"""The network of packets beside a public packet simulator, and its speed.

    python benchmarks/validate_packets.py --shared ../shared

Each run of htsim with the paths that its flows took: RoCE behind PFC, and DCQCN with one estimate per flow. Rules were
written looking at one half of the runs; the other, by a hash of the name of the run, was kept back. Errors are of the
mean and of the longest flow. The last line is an all-to-all of 32 hosts on one switch, 8 MB between each two.
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
from etude.run.simulate.packets.alone import PacketFlow, Wires, run_flows
from etude.run.simulate.packets.state import Rules

ROCE = Rules(
    payload_bytes=4096, header_bytes=64, answer_bytes=64, pads=False, answers=True,
    pause_bytes=61_440, resume_bytes=49_152, mark_bytes=0, notice_ps=0, raise_ps=0,
)  # fmt: skip


def kept_back(run: str) -> bool:
    return int(hashlib.sha256(run.encode()).hexdigest(), 16) % 2 == 1


def compare(folder: Path) -> None:
    errors: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    pauses: dict[tuple[str, bool], list[float]] = {}
    left = 0
    with (folder / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        try:
            found = predict(Item(row["run_id"], FabricRun(row, folder)), ScoreRequest())
        except EtudeError:
            left += 1
            continue
        key = row["protocol"], kept_back(row["run_id"])
        off = [abs(found.predicted[f] / found.measured[f] - 1) for f in ("fct_mean_us", "fct_max_us")]
        errors.setdefault(key, []).append((off[0], off[1]))
        counted = pauses.setdefault(key, [0.0, 0.0])
        counted[0] += found.predicted.get("pfc_pauses", 0.0)
        counted[1] += found.measured.get("pfc_pauses", 0.0)
    for key in sorted(errors):
        mean, most = np.array(errors[key]).T * 100
        print(
            f"{key[0]:<10} {'kept back' if key[1] else 'looked at'} {len(mean):>3} runs"
            f"  mean: median {np.median(mean):.2f}%, p90 {np.percentile(mean, 90):.2f}%, worst {mean.max():.2f}%"
            f"  longest: p90 {np.percentile(most, 90):.2f}%, worst {most.max():.2f}%"
            f"  pauses {pauses[key][0]:,.0f}, measured {pauses[key][1]:,.0f}"
        )
    print(f"{left} runs of other senders and routings are not compared")


def all_to_all(hosts: int = 32, size_bytes: int = 8_000_000) -> None:
    wires = Wires(
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
    given = parser.parse_args()
    folder = given.shared / "oracle/htsim"
    if folder.exists():
        compare(folder)
    else:
        print(f"there is no {folder}")
    all_to_all()


if __name__ == "__main__":
    main()
