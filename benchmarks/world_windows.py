"""Do moments of worlds agree with jobs simulated node by node? Random scenarios of each kind of workload.

    python benchmarks/world_windows.py --count 20 --seed 0 [--kind serve] [--rows]

For each scenario a moment is drawn, written as a job by what `etude world window` calls, and simulated. The time of the
stretch in the world and that of the job are compared, and the sums over all passes or groups of devices, of which the
larger difference counts: median and largest by kind. Differences above 1% must
have one of the mechanisms below, which are known and counted; the script fails on another. Moments at which a workload
does nothing that has nodes are counted with the reason.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.cost.ops import OpClass
from etude.cost.traces import ops_of
from etude.world.makers import is_kind, kinds
from etude.world.scenario import WorkloadKinds, scenario_of
from etude.world.serve.catalogue import TOKENS
from etude.world.windows import JobWindow, WindowRequest, window_of

LEAST = 0.01
SLOW = "several slow nodes: the world counts the slowest alone, and other stages or micro-batches for one node"
STAGES = "other stages for a slow node: the world scales the planned step by what they gain with slow compute alone"
PIPE = "a slow node of a pipeline: others wait for it anyway at times, and the world slows all of the step"
SHAPES = "tokens between the shapes of step costs: products pad their rows to whole tiles, the world interpolates"
PIECES = "pieces of prompts that give no token: the world counts logits of one"
RING = "around a ring of devices the world counts both ends of each message"
NCCL = "collectives of NCCL between the shapes of step costs: they change their protocol, the world interpolates"
STREAM = 20261118
"""Keeps draws of scenarios apart from those of their faults."""
Random = np.random.Generator


def pick(random: Random, *options: Any) -> Any:
    return options[int(random.integers(len(options)))]


def train(random: Random, folder: Path) -> tuple[dict[str, Any], dict[str, Any], float]:
    """A job with faults, slow nodes, links that change or a cap of the power."""
    tp, pp = pick(random, 2, 4, 8), pick(random, 1, 1, 2)
    recover = pick(random, "restart", "spare", "shrink", "redistribute", "replan")
    job = {"train": pick(random, "llama3-8b", "qwen3-8b"), "gpus": 32, "tp": tp, "pp": pp, "global_batch": 64,
           "checkpoint": pick(random, "remote:20min", "remote:10min:async")}  # fmt: skip
    more: dict[str, Any] = {"events": {}}
    faults = pick(random, "", "node:mtbf=8h,repair=2h", "slow:effect=slow,mtbf=30h,factor=1.4,duration=2h")
    if faults:
        more["events"]["faults"] = faults
        job |= {"recover": recover} | ({"spares": 1} if recover == "spare" else {})
    if random.random() < 0.3:
        (folder / "links.csv").write_text("time_s,infiniband\n0,1\n7200,0.3\n21600,0.7\n")
        more["events"]["links"] = str(folder / "links.csv")
    machine = {"system": "dgx-h100", "nodes": 5 if recover == "spare" else 4}
    if random.random() < 0.3:
        machine["power"] = "14kW"
    return job, more | {"machine": machine, "horizon": "12h"}, float(random.uniform(0, 12 * 3600))


def serve(random: Random, folder: Path) -> tuple[dict[str, Any], dict[str, Any], float]:
    """Requests of drawn lengths, or all of one, on replicas with or without prefill apart, a cache and faults."""
    count, rate = 3000, float(random.uniform(4, 25))
    arrival = np.cumsum(random.exponential(1 / rate, count))
    prompt = np.clip(random.lognormal(6.3, 1.0, count), 4, 8000).astype(int)
    if random.random() < 0.2:
        prompt[:] = int(random.integers(100, 3000))
    output = np.clip(random.lognormal(5.0, 0.8, count), 1, 1000).astype(int)
    rows = zip(arrival.tolist(), prompt.tolist(), output.tolist(), strict=True)
    path = folder / "requests.csv"
    path.write_text("arrival,prompt,output\n" + "".join(f"{a:.6f},{p},{o}\n" for a, p, o in rows))
    job = {"serve": pick(random, "llama3-8b", "qwen3-8b", "mixtral-8x7b"), "tp": pick(random, 2, 4, 8),
           "stack": pick(random, "vllm", "vllm-0.11", "none"), "requests": str(path)}  # fmt: skip
    more: dict[str, Any] = {}
    if random.random() < 0.25:
        job["disaggregate"] = "1:1"
    else:
        job["replicas"] = int(random.integers(1, 4))
        if random.random() < 0.5:
            more["events"] = {"faults": "node:mtbf=10min,repair=1min"}
    machine = {"system": pick(random, "dgx-h100", "dgx-a100"), "nodes": 6}
    horizon = float(min(count / rate, 170))
    return job, more | {"machine": machine, "horizon": f"{horizon:.0f}s"}, float(random.uniform(2, horizon - 3))


def workflow(random: Random, folder: Path) -> tuple[dict[str, Any], dict[str, Any], float]:
    role = pick(random, "planner", "worker")
    job = {"workflow": "swe_agent", "models": {"planner": "llama3-8b", "worker": pick(random, "gpt2", "qwen3-8b")},
           "cache": pick(random, "prefix", "none"), "replicas": int(random.integers(1, 3))}  # fmt: skip
    if random.random() < 0.3:
        del job["replicas"]
        job["disaggregate"] = "1:1"
    return (
        job,
        {"machine": {"system": "dgx-h100", "nodes": 2}, "horizon": "5min", "_role": role},
        float(random.uniform(0, 40)),
    )


def images(random: Random, folder: Path) -> tuple[dict[str, Any], dict[str, Any], float]:
    videos = random.random() < 0.4
    mix = "mix:480x832x81@50=0.7,480x480x33@30=0.3" if videos else "mix:1024x1024@28=0.6,512x512@20=0.4"
    job = {"images": "wan2.1-14b" if videos else "flux.1-dev", "requests": mix, "rate": 0.03 if videos else 1.0,
           "count": 100, "gpus": 8, "degree": pick(random, "fixed:1", "fixed:2", "fixed:4", "elastic"),
           "stack": pick(random, "xdit-0.4", "xdit-0.4", "xdit-0.4", "none"),
           "images_at_once": int(random.integers(1, 3))}  # fmt: skip
    more = {"machine": {"system": "dgx-h100", "nodes": 1}, "horizon": "10min", "_for": 20.0 if videos else 2.0}
    return job, more, float(random.uniform(5, 90))


def rl(random: Random, folder: Path) -> tuple[dict[str, Any], dict[str, Any], float]:
    tp = pick(random, 1, 2, 4)
    rollout = {"samples": int(random.integers(8, 600)), "tokens": 256, "spread": 0.6, "tp": tp, "at_once": 64,
               "context": int(random.integers(200, 6000))}  # fmt: skip
    plan = {"gpus": 16, "tp": 4, "global_batch": 256}
    job = {"rl": "llama3-8b", "nodes": 2, "rollout": rollout, "train": {"plan": plan}, "steps": 1000}
    return job, {"machine": {"system": "dgx-h100", "nodes": 2}, "horizon": "10min"}, float(random.uniform(0, 500))


KINDS: dict[str, Callable[[Random, Path], tuple[dict[str, Any], dict[str, Any], float]]] = {
    "train": train, "serve": serve, "workflow": workflow, "images": images, "rl": rl,
}  # fmt: skip


def drawn(kind: str, seed: int, folder: Path) -> tuple[Any, WindowRequest, dict[str, Any]]:
    random = np.random.default_rng([seed, list(KINDS).index(kind), STREAM])
    job, more, at_s = KINDS[kind](random, folder)
    role, for_s = more.pop("_role", ""), more.pop("_for", 0.5)
    given = {**more, "seed": seed, "workloads": {"it": job}}
    scenario = scenario_of(given, str(folder / "world.yaml"), WorkloadKinds(is_kind, kinds))
    wanted = WindowRequest(at_ns=round(at_s * 1e9), steps=1, for_ns=round(for_s * 1e9), role=role)
    return scenario, wanted, job


def mechanism(kind: str, found: JobWindow, run: Any, job: dict[str, Any]) -> str:
    """Why a stretch differs by more than 1%; empty: it is not known."""
    if kind == "train":
        plan = str(found.counts["plan"])
        if any("several nodes" in note for note in found.notes):
            return SLOW
        if plan.startswith("layers"):
            return STAGES
        return PIPE if job["pp"] > 1 and "slow_ranks" in found.options else ""
    if kind == "images":
        return RING if len(found.job) > found.counts["groups"] else ""
    if found.pass_ns is None:
        return ""
    if job.get("stack") == "none" and job["tp"] > 1:
        return NCCL
    world, node_level = found.pass_ns(run)
    of_passes = [_reads(trace) for trace in _programs(found)]
    reads, silent, tokens = (np.concatenate([part[k] for part in of_passes]) for k in range(3))
    exact = ~reads & np.isin(tokens, TOKENS)
    if exact.any() and abs(node_level[exact].sum() / world[exact].sum() - 1) > LEAST:
        return ""
    off = np.abs(node_level - world)
    return PIECES if off[silent].sum() > off[~silent].sum() else SHAPES


def _programs(found: JobWindow) -> list[Any]:
    numbers = found.job.trace_of[np.sort(np.unique(found.job.trace_of, return_index=True)[1])]
    return [found.job.traces[int(number)] for number in numbers]


def _reads(trace: Any) -> tuple[Any, Any, Any]:
    """Passes that read prompts, those that give no token, and the tokens that their layers run with."""
    codes, words = trace.coded("phase")
    passes = int(trace.step.max()) + 1
    decodes = np.zeros(passes, bool)
    decodes[trace.step[np.isin(codes, [k for k, word in enumerate(words) if word == "decode"])]] = True
    names, called = trace.coded("name")
    gives = np.zeros(passes, bool)
    gives[trace.step[np.isin(names, [k for k, word in enumerate(called) if "multinomial" in word])]] = True
    ops, tokens = ops_of(trace), np.zeros(passes, np.int64)
    products = np.flatnonzero((ops.op_class == OpClass.GEMM) & (trace.step >= 0))[::-1]
    tokens[trace.step[products]] = ops.m[products]  # of the first product of a pass
    return ~decodes, ~gives, tokens


def one(kind: str, seed: int, *, rows: bool) -> tuple[float, str] | str:
    """The difference and its mechanism; or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        scenario, wanted, job = drawn(kind, seed, Path(folder))
        try:
            found = window_of(scenario, "it", wanted)
        except UsageError as problem:
            if rows:
                print(f"{kind} {seed}: at {wanted.at_ns / 1e9:.1f} s: {problem.problem}")
            return re.sub(r"at [0-9.e+]+ s( it)?", "then it", problem.problem)
        run = found.simulated()
    off = run.makespan_ns / found.world_ns - 1
    if found.pass_ns is not None:  # of all replicas or groups, not only of the one that takes longest
        world, node_level = found.pass_ns(run)
        off = max(off, node_level.sum() / world.sum() - 1, key=abs)
    why = mechanism(kind, found, run, job) if abs(off) > LEAST else ""
    if rows or (abs(off) > LEAST and not why):
        what = ", ".join(f"{name} {value}" for name, value in found.counts.items())
        print(
            f"{kind} {seed}: at {wanted.at_ns / 1e9:.1f} s: {what}: {found.world_ns / 1e9:.6g} s in the world, "
            f"{run.makespan_ns / 1e9:.6g} s node by node, {off:+.3%} {why}",
            flush=True,
        )
    return off, why


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, help="scenarios of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the others follow")
    parser.add_argument("--kind", choices=tuple(KINDS), help="only this kind of workload")
    parser.add_argument("--rows", action="store_true", help="a line for each moment")
    given = parser.parse_args()
    since, moments, near, unknown = time.process_time(), 0, 0, 0
    for kind in [given.kind] if given.kind else KINDS:
        answers = [one(kind, seed, rows=given.rows) for seed in range(given.seed, given.seed + given.count)]
        found = [answer for answer in answers if not isinstance(answer, str)]
        off = [abs(off) for off, _ in found] or [0.0]
        within = sum(abs(off) <= LEAST for off, _ in found)
        moments, near = moments + len(found), near + within
        unknown += sum(abs(off) > LEAST and not why for off, why in found)
        print(f"{kind}: {len(found)} moments, {within} within 1%: median {np.median(off):.4%}, largest {max(off):.2%}")
        for why, times in Counter(why for _, why in found if why).items():
            print(f"    {times} times up to {max(abs(off) for off, its in found if its == why):.1%}: {why}")
        for why, times in Counter(answer for answer in answers if isinstance(answer, str)).items():
            print(f"    {times} times nothing to write: {why}")
    print(
        f"in all: {moments} moments, {near} within 1%, {moments - near - unknown} above it by a known mechanism, "
        f"{unknown} by another; {time.process_time() - since:.0f} CPU s"
    )
    sys.exit(1 if unknown else 0)


if __name__ == "__main__":
    main()
