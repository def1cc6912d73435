"""From what PyTorch recorded to `.et`: the causal graph, and the official rules, against a plain Python loop.

    python benchmarks/bench_ingest.py                       # the large capture of the reference data, if it is there
    python benchmarks/bench_ingest.py HOST DEVICE --no-naive

CPU seconds and peak memory of processes of their own; ours has compiled its kernels before. The loop is the one that
defines the rules for the tests (`tests/naive_official.py`): dicts from the standard library's JSON, one protobuf
message a node; it and ours by the same rules must give the same bytes. The causal graph has about three times the
nodes of theirs. The last table is the causal path in one process, warm, from small captures to the large one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests")]


def official(host: Path, device: Path) -> dict[str, Any]:
    from etude.capture.ingest import official

    return staged(host, device, lambda h, d: official.convert(h, d)[0])


def causal(host: Path, device: Path) -> dict[str, Any]:
    from etude.capture.ingest import causal
    from etude.store import chakra

    return staged(
        host, device, lambda h, d: chakra.for_rank(causal.to_job("run", [causal.convert(d, h, rank=0)]), 0)[0]
    )


def staged(host: Path, device: Path, convert: Callable[[Any, Any], Any]) -> dict[str, Any]:
    from etude.capture.link.device import read_device
    from etude.capture.link.host import read_host
    from etude.store import chakra, compressed

    clock, last = time.process_time, time.process_time()
    stages: dict[str, float] = {}

    def stage(name: str) -> None:
        nonlocal last
        stages[name], last = clock() - last, clock()

    heap, size = compressed.load(host)
    stage("unpack host")
    host_trace = read_host(heap, size, str(host))
    stage("scan host")
    heap, size = compressed.load(device)
    stage("unpack device")
    device_trace = read_device(heap, size, str(device))
    stage("scan device")
    del heap
    decoded = convert(host_trace, device_trace)
    stage("link and convert")
    digest, written = hashlib.sha256(), 0
    for part in chakra.encode_parts(decoded):
        written += len(part)
        digest.update(part.data)
    stage("encode")
    return {"stages_s": stages, "nodes": len(decoded.trace), "bytes": written, "sha256": digest.hexdigest()}


def growth(folder: Path, quick: bool) -> None:
    """CPU time a node over captures of different size."""
    print(f"\n{'capture':<12} {'nodes':>9} {'CPU s':>7} {'us a node':>10}")
    for name in ("traces/h200/gpt_train", "traces/h200_pairs/gpt8_b1", *(() if quick else ("traces/h200/big",))):
        host, device = (folder / f"{name}_{side}.json.gz" for side in ("et", "kineto"))
        if host.exists():
            causal(host, device)
            found = min((causal(host, device) for _ in range(3)), key=lambda f: sum(f["stages_s"].values()))
            seconds = sum(found["stages_s"].values())
            print(f"{host.name.removesuffix('_et.json.gz'):<12} {found['nodes']:>9,} {seconds:>7.2f}"
                  f" {seconds / found['nodes'] * 1e6:>10.1f}")  # fmt: skip


def naive(host: Path, device: Path) -> dict[str, Any]:
    import gzip

    import naive_official

    def load(path: Path) -> Any:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return json.loads(file.read())

    start = time.process_time()
    out = naive_official.convert(load(host), load(device))
    seconds = time.process_time() - start
    return {"stages_s": {"all": seconds}, "bytes": len(out), "sha256": hashlib.sha256(out).hexdigest()}


def measured(which: str, host: Path, device: Path) -> dict[str, Any]:
    """One run in a process of its own."""
    argv = [sys.executable, __file__, str(host), str(device), "--run", which]
    return json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def show(which: str, found: dict[str, Any]) -> float:
    total = sum(found["stages_s"].values())
    stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in found["stages_s"].items())
    print(f"{which:8} {total:7.2f} s CPU, peak {found['peak_mb']:,} MB, {found['bytes']:,} bytes  ({stages})")
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("ETUDE_SHARED", HERE.parent.parent / "shared")) / "traces/h200"
    parser.add_argument("host", type=Path, nargs="?", default=shared / "big_et.json.gz")
    parser.add_argument("device", type=Path, nargs="?", default=shared / "big_kineto.json.gz")
    parser.add_argument("--no-naive", action="store_true", help="only ours")
    parser.add_argument("--quick", action="store_true", help="a small capture")
    parser.add_argument("--run", choices=list(PATHS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.host, args.device = shared / "gpt_train_et.json.gz", shared / "gpt_train_kineto.json.gz"
    if not args.host.exists():
        print(f"{args.host} is not there: nothing to measure")
        return 0
    if args.run:
        found = PATHS[args.run](args.host, args.device)
        found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps(found))
        return 0
    runs = {}
    for which in ("causal", "official"):
        measured(which, args.host, args.device)  # compiles
        runs[which] = measured(which, args.host, args.device)
        seconds = show(which, runs[which])
        print(f"         {seconds / runs[which]['nodes'] * 1e6:.1f} us a node, {runs[which]['nodes']:,} nodes")
    wrong = False
    if not args.no_naive:
        slow = measured("naive", args.host, args.device)
        naive_s = show("naive", slow)
        wrong = slow["sha256"] != runs["official"]["sha256"]
        for which, found in runs.items():
            ratio, memory = naive_s / sum(found["stages_s"].values()), found["peak_mb"] / slow["peak_mb"]
            print(f"{which}: {ratio:.1f} times as fast as the loop, {memory:.2f} of its memory")
        print("official: OTHER BYTES than the loop" if wrong else "official: the same bytes as the loop")
    growth(shared.parent.parent, args.quick)
    return int(wrong)


PATHS: dict[str, Callable[[Path, Path], dict[str, Any]]] = {"causal": causal, "official": official, "naive": naive}


if __name__ == "__main__":
    sys.exit(main())
