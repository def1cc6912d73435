"""From what PyTorch recorded to `.et`, by the official rules: our columns against a plain Python loop.

    python benchmarks/bench_ingest.py                       # the large capture of the reference data, if it is there
    python benchmarks/bench_ingest.py HOST DEVICE --no-naive

CPU seconds and peak memory of processes of their own; ours has compiled its kernels before. The loop is the one that
defines the rules for the tests (`tests/naive_official.py`): dicts from the standard library's JSON, one protobuf
message a node. Both must give the same bytes.
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
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests")]


def ours(host: Path, device: Path) -> dict[str, Any]:
    from etude.ingest import official
    from etude.link.device import read_device
    from etude.link.host import read_host
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
    decoded, _ = official.convert(host_trace, device_trace)
    stage("link and convert")
    digest, written = hashlib.sha256(), 0
    for part in chakra.encode_parts(decoded):
        written += len(part)
        digest.update(part.data)
    stage("encode")
    return {"stages_s": stages, "nodes": len(decoded.trace), "bytes": written, "sha256": digest.hexdigest()}


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
    print(f"{which:6} {total:7.2f} s CPU, peak {found['peak_mb']:,} MB, {found['bytes']:,} bytes  ({stages})")
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("ETUDE_SHARED", HERE.parent.parent / "shared")) / "traces/h200"
    parser.add_argument("host", type=Path, nargs="?", default=shared / "big_et.json.gz")
    parser.add_argument("device", type=Path, nargs="?", default=shared / "big_kineto.json.gz")
    parser.add_argument("--no-naive", action="store_true", help="only ours")
    parser.add_argument("--quick", action="store_true", help="a small capture")
    parser.add_argument("--run", choices=["ours", "naive"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.host, args.device = shared / "gpt_train_et.json.gz", shared / "gpt_train_kineto.json.gz"
    if not args.host.exists():
        print(f"{args.host} is not there: nothing to measure")
        return 0
    if args.run:
        found = (ours if args.run == "ours" else naive)(args.host, args.device)
        found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps(found))
        return 0
    measured("ours", args.host, args.device)  # compiles
    quick = measured("ours", args.host, args.device)
    fast = show("ours", quick)
    print(f"       {fast / quick['nodes'] * 1e6:.1f} µs a node, {quick['nodes']:,} nodes")
    if not args.no_naive:
        slow = measured("naive", args.host, args.device)
        ratio = show("naive", slow) / fast
        same = "the same bytes" if slow["sha256"] == quick["sha256"] else "OTHER BYTES"
        print(f"{ratio:.1f} times as fast, {quick['peak_mb'] / slow['peak_mb']:.2f} of the memory, {same}")
        return 0 if slow["sha256"] == quick["sha256"] else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
