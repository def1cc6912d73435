"""The feeder: time, nodes a second and memory, from files and from memory.

    python benchmarks/bench_feeder.py              # 2.2 million minimal nodes, 1 million PyTorch-like ones (550 MB)
    python benchmarks/bench_feeder.py --quick      # a tenth of it
    python benchmarks/bench_feeder.py --pytorch-nodes 2000000    # a file of more than 1 GB

Every line comes from a process of its own that has fed a small file before. CPU seconds; peak memory is what the
process needs above that state. "stream" is `open_feeder`, "memory" reads the whole job first; "drain" completes each
node as it is issued inside one call, "batch" takes all ready nodes and completes them, "one by one" calls `next` and
`complete` for each, and "with duration" also looks at the duration of each. Minimal nodes are a chain, so a batch is
one node. In "late" files all nodes wait for the last one. The bound, for "stream", is 64 B a node and 8 B an edge, and
the 64 MiB that decoded nodes may take; "memory" holds the trace as well.

For comparison, the C++ feeder of the official tools (built -O2, load and drain, data dependencies only) was measured on
another machine: 1.0 M minimal nodes 1.07 s and 1,130 MB; 2.2 M minimal nodes 3.7 s and 2,478 MB; 4,000 / 8,000 / 16,000
late nodes 0.34 / 2.1 / 9.0 s.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]
WARM_NODES = 2000


# ---- files


def minimal(path: Path, nodes: int, late: bool = False) -> None:
    """Nodes of an id, a kind and one dependency: the node before, or (`late`) the last one."""
    from et_files import varint

    with path.open("wb") as out:
        out.write(b"\x03\x0a\x011")
        for i in range(1, nodes + 1):
            wanted = nodes if late else i - 1
            body = b"\x08" + varint(i) + b"\x18\x04"
            if wanted not in (0, i):
                dep = varint(wanted)
                body += b"\x2a" + varint(len(dep)) + dep
            out.write(varint(len(body)) + body)


def late(path: Path, nodes: int) -> None:
    minimal(path, nodes, late=True)


def pytorch(path: Path, nodes: int) -> None:
    import et_files

    et_files.pytorch_like(path, nodes)


MAKERS: dict[str, Callable[[Path, int], None]] = {"minimal": minimal, "late": late, "pytorch": pytorch}


# ---- ways to use it


def _stream(path: Path) -> Any:
    from etude.store.et_stream import open_feeder

    return open_feeder(path, missing="drop")


def _memory(path: Path) -> Any:
    from etude.model.feeder.feed import feeder
    from etude.store.chakra import read_job

    return feeder(read_job(path), missing="drop")


def _drain(feed: Any) -> None:
    for rank in feed.ranks.tolist():
        feed.drain(rank)


def _batch(feed: Any) -> None:
    rank = feed.rank(int(feed.ranks[0]))
    while len(nodes := rank.next_batch()):
        rank.complete_many(nodes)


def _one_by_one(feed: Any) -> None:
    rank = feed.rank(int(feed.ranks[0]))
    while (node := rank.next()) is not None:
        rank.complete(node)


def _with_duration(feed: Any) -> None:
    rank = feed.rank(int(feed.ranks[0]))
    while (node := rank.next()) is not None:
        _ = rank.node(node).duration_ns
        rank.complete(node)


OPENERS = {"stream": _stream, "memory": _memory}
WAYS = {"drain": _drain, "batch": _batch, "one by one": _one_by_one, "with duration": _with_duration}


def measure(opener: str, way: str, path: Path, warm: Path) -> dict[str, float]:
    import bench_et

    WAYS[way](OPENERS[opener](warm))
    base = bench_et._reset_peak()
    begin = time.process_time()
    feed = OPENERS[opener](path)
    opened = time.process_time()
    edges = sum(len(feed.rank(r)._graph.succ) for r in feed.ranks.tolist())
    nodes = sum(len(feed.rank(r)) for r in feed.ranks.tolist())
    held = feed.nbytes
    started = time.process_time()
    WAYS[way](feed)
    done = time.process_time()
    if not feed.done():
        raise SystemExit(f"{path}: not all nodes were fed")
    return {
        "open_s": opened - begin,
        "feed_s": done - started,
        "peak_bytes": bench_et._peak() - base,
        "held_bytes": held,
        "nodes": nodes,
        "edges": edges,
    }


def _spawn(opener: str, way: str, path: Path, warm: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", opener, "--way", way, "--file", str(path), "--warm", str(warm)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


MINIMAL = (("stream", "drain"), ("stream", "batch"), ("stream", "one by one"), ("memory", "drain"))
PYTORCH = (("stream", "drain"), ("stream", "batch"), ("stream", "with duration"))
PYTORCH += (("memory", "drain"), ("memory", "batch"), ("memory", "with duration"))
HEAD = ("open s", "feed s", "nodes/s fed", "held MB", "peak MB", "bound MB", "file MB")


def _line(kind: str, opener: str, way: str, path: Path, r: dict[str, float]) -> str:
    bound = 64 * r["nodes"] + 8 * r["edges"] + (64 << 20)
    cells = [f"{r['open_s']:.3f}", f"{r['feed_s']:.3f}", f"{r['nodes'] / max(r['feed_s'], 1e-9):,.0f}"]
    cells += [f"{b / 1e6:,.1f}" for b in (r["held_bytes"], r["peak_bytes"], bound, path.stat().st_size)]
    return f"{kind} {int(r['nodes']):,}, {opener}, {way}".ljust(44) + "".join(f"{c:>13}" for c in cells)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the nodes")
    parser.add_argument("--pytorch-nodes", type=int, default=1_000_000)
    parser.add_argument("--minimal-nodes", type=int, default=2_200_000)
    parser.add_argument("--folder", type=Path, help="keep the files here and use those that are there")
    parser.add_argument("--measure", choices=sorted(OPENERS), help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=sorted(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--warm", type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args(argv)
    if a.measure:
        print(json.dumps(measure(a.measure, a.way, a.file, a.warm)))
        return 0
    share = 10 if a.quick else 1
    cases = [("minimal", a.minimal_nodes // share, *how) for how in MINIMAL]
    cases += [("late", n, "stream", "drain") for n in (4000, 8000, 16_000, 1_000_000 // share)]
    cases += [("pytorch", a.pytorch_nodes // share, *how) for how in PYTORCH]
    print(" " * 44 + "".join(f"{h:>13}" for h in HEAD))
    with tempfile.TemporaryDirectory(prefix="bench_feeder.") as temporary:
        folder = a.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for kind, nodes, opener, way in cases:
            path, warm = folder / f"{kind}-{nodes}.et", folder / f"{kind}-warm.et"
            for file, size in ((path, nodes), (warm, WARM_NODES)):
                if not file.exists():
                    MAKERS[kind](file, size)
            print(_line(kind, opener, way, path, _spawn(opener, way, path, warm)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
