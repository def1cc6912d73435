"""The compiled request loop of serving: an hour of requests, its first compilation, and a call from Python.

    python benchmarks/bench_serve_loop.py [--against ../before/src] [--times 5] [--cold 2]

`hour` is the Azure conversation hour on 16 replicas, read and deployed before the clock starts; `compile` the first
small stream with an empty cache of kernels, less the second; `crossing` a call of the loop that returns at once, since
all requests are answered; `hook` a pass with a hook inside the loop, which then runs as plain Python. Each is the least
CPU time of several processes. With `--against` the sources of another tree run in turn with these, and `ratio` is ours
by theirs: CPU seconds grow with the load of the machine, their ratio does not. The script fails if the two trees give
different results.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent / "src"
SHARED = Path(os.environ.get("ETUDE_SHARED", HERE.parent.parent / "shared"))
HOUR = SHARED / "requests" / "azure_2023_conv.csv"
CALLS = 50_000
UNITS = {"hour": ("CPU s", 1.0), "compile": ("CPU s", 1.0), "crossing": ("ns", 1e9), "hook": ("us a pass", 1e6)}


def compiled() -> dict[str, Any]:
    from etude.world.serve import Engine, serve
    from etude.world.serve.steps import step_cost
    from etude.world.serve.workloads import poisson

    cost, took = step_cost(tokens=[1], layers_ns=[1000.0]), []
    for _ in range(2):
        start = time.process_time()
        serve(poisson(1.0, 10, 8, 8), Engine(), cost)
        took.append(time.process_time() - start)
    return {"compile": took[0] - took[1]}


def served() -> dict[str, Any]:
    from etude.machine import open_system
    from etude.make.generate import Plan
    from etude.make.generate.model import open_model
    from etude.world.serve import Engine, deployed, request_stream, serve
    from etude.world.serve.hooks import Hooks
    from etude.world.serve.loop import advance
    from etude.world.serve.serving import NO_LOG, Group, ServingOptions, ready_for, run
    from etude.world.serve.workloads import poisson

    engine, stream = Engine(), request_stream(HOUR)
    placed = deployed(open_model("llama3-8b"), Plan(gpus=1), open_system("dgx-h100"), engine)
    serve(poisson(1.0, 10, 8, 8), engine, placed.cost)
    start = time.process_time()
    found = serve(stream, engine, placed.cost, replicas=16, router="least", blocks=placed.blocks, energy=placed.energy)
    took = {"hour": time.process_time() - start}
    digest = hashlib.sha256(repr([found.column(name).tolist() for name in ("FIRST", "FINISH", "REPLICA")]).encode())

    options = ServingOptions()
    few = ready_for(stream.first(200), engine, [Group(placed.cost, 16)], options)
    run(few.state, few.rules, few.machines, options, few.asked)
    start = time.process_time()
    for _ in range(CALLS):
        advance(few.state, few.rules, few.machines, NO_LOG)
    took["crossing"] = (time.process_time() - start) / CALLS

    hooks = Hooks(evict=lambda running, replica, now_s: running[-1]["request"])
    start = time.process_time()
    plain = serve(stream.first(100), engine, placed.cost, router="least", blocks=placed.blocks, hooks=hooks)
    took["hook"] = (time.process_time() - start) / int(plain.count("PASSES").sum())
    digest.update(repr(plain.column("FINISH").tolist()).encode())
    return took | {"digest": digest.hexdigest()}


def measured(what: str, source: Path, cache: Path) -> dict[str, Any]:
    """The figures of a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(source), "NUMBA_CACHE_DIR": str(cache), "ETUDE_SHARED": str(SHARED)}
    command = [sys.executable, __file__, "--child", what]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="the `src` of another tree")
    parser.add_argument("--times", type=int, default=5, help="processes that serve the hour")
    parser.add_argument("--cold", type=int, default=2, help="processes that compile; 0: none")
    parser.add_argument("--child", choices=("compiled", "served"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(compiled() if given.child == "compiled" else served()))
        return 0
    if not HOUR.is_file():
        print(f"needs the reference data ({HOUR})", file=sys.stderr)
        return 0
    trees = [HERE] + ([given.against.resolve()] if given.against else [])
    for tree in trees:
        compileall.compile_dir(tree, quiet=2)
    rows: list[list[dict[str, Any]]] = [[] for _ in trees]
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(given.cold + given.times + 1):
            for number, tree in enumerate(trees):
                what = "compiled" if turn < given.cold else "served"
                cache = Path(folder) / (f"{number}-{turn}" if turn < given.cold else f"{number}")
                found = measured(what, tree, cache)
                if turn != given.cold:  # that one compiles what the hour needs
                    rows[number].append(found)
    print(f"{'':10} {'':10} {'ours':>10} {'theirs':>10} {'ratio':>6}")
    for name, (unit, scale) in UNITS.items():
        least = [min((row[name] * scale for row in its if name in row), default=0.0) for its in rows]
        if least[0]:
            beside = f"{least[1]:>10.3f} {least[0] / least[1]:>6.3f}" if len(least) > 1 else ""
            print(f"{name:10} {unit:10} {least[0]:>10.3f} {beside}")
    results = {row["digest"] for its in rows for row in its if "hour" in row}
    print("the same results in every run" if len(results) == 1 else f"{len(results)} different results")
    return int(len(results) != 1)


if __name__ == "__main__":
    raise SystemExit(main())
