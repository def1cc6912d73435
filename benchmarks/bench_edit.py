"""How long edits take, and what they say: a folded job of 16,384 ranks edited by every edit, and three curves.

    python benchmarks/bench_edit.py [--curves]

Llama-3 405B on 16,384 GPUs (tp 8, pp 16, dp 128), generated and given the times of DGX H100, then edited. Start-up and
compilation are left out: a small job is edited before. CPU seconds of this process.

`--curves`: gains of compressed data-parallel communication over the bandwidth of a device (ZipCCL), of compressed
tensor-parallel communication (TACO), and of an order that is a hint over the spread of passes (RRFP).
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace

from etude.base.errors import EtudeError
from etude.machine import open_system
from etude.machine.system import System
from etude.make.generate import Plan, generate
from etude.make.generate.model import open_model
from etude.make.transform import with_durations
from etude.make.transform.edits import apply_edits
from etude.model.job import Job
from etude.run.simulate import simulate
from etude.steps import predict
from etude.steps.what_if import simulated_again, what_if

LLAMA = Plan(gpus=16384, tp=8, pp=16, global_batch=2048, zero=1, schedule="interleaved:2")
EDITS = (
    "speed op=aten::mm by=1.3",
    "dtype op=aten::mm to=fp8",
    "drop op=aten::add",
    "compress group=dp,tp ratio=1.35 encode=400GB/s decode=600GB/s",
    "compress group=dp,tp ratio=1.35 encode=400GB/s decode=600GB/s when=pays",
    "fuse",
    "merge group=dp s=2",
    "split group=tp into=2",
    "chunk size=16MB",
    "rounds module=layers.0.* k=1 message=1kB over=tp",
    "relax",
    "recompute module=*ffn*",
    "overlap group=tp stream=30",
    "one_sided control=8B",
    "speed by=1.1 ranks=0-7",
    "scale axis=dp to=256",
)
ZIP = "compress group=dp,ep ratio=1.35 encode=400GB/s decode=600GB/s when=pays"
TACO = "compress group=tp ratio=2 overhead=0.015625 encode=1000GB/s decode=1000GB/s when=pays"


def times() -> None:
    machine = open_system("dgx-h100").for_ranks(LLAMA.gpus)
    small = generate(open_model("gpt2"), Plan(gpus=8, tp=2, pp=2, global_batch=8)).job
    for text in EDITS[:-1]:
        attempt(with_durations(small, machine.device), text, machine)
    job = with_durations(generate(open_model("llama3-405b"), LLAMA).job, machine.device)
    print(f"{len(job):,} ranks, {job.nodes:,} nodes, {len(job.traces)} traces")
    spent = []
    for text in EDITS:
        cpu = time.process_time()
        said = attempt(job, text, machine)
        spent.append(time.process_time() - cpu)
        print(f"{text:75s} {spent[-1]:6.2f} CPU s  {said}", flush=True)
    print(f"{len(spent)} edits: {min(spent):.2f} to {max(spent):.2f} CPU s each")
    timing = simulate(job, machine).timing
    cpu = time.process_time()
    pays = next(text for text in EDITS if text.endswith("when=pays"))
    found = apply_edits(job, [pays], system=machine, times=lambda _: timing)
    said = f"{'... beside a simulation that shows what is hidden':75s} {time.process_time() - cpu:6.2f} CPU s"
    print(f"{said}  {found.steps[0].nodes:>12,} selected, {found.job.nodes:>12,} nodes")


def attempt(job: Job, text: str, machine: System) -> str:
    """What an edit did, or why it was refused."""
    try:
        found = apply_edits(job, [text], system=machine)
    except EtudeError as problem:
        return f"refused: {problem.problem}"
    return f"{found.steps[0].nodes:>12,} selected, {found.job.nodes:>12,} nodes"


def with_bandwidth(gbit: int, gpus: int) -> System:
    """Nodes of 8 H100, each GPU with a port of so many Gb/s to the others."""
    system = open_system("dgx-h100")
    inner, outer = system.levels[0], system.levels[1]
    slower = replace(outer, bandwidth_bytes_per_s=gbit * 1e9 / 8)
    return system.replace(levels=(inner, slower, *system.levels[2:])).for_ranks(gpus)


def curves() -> None:
    plan = Plan.from_dict({"gpus": 64, "zero": 3})
    print("ZipCCL: llama3-8b, 64 GPUs, ZeRO 3:", ZIP)
    for gbit in (50, 100, 200, 400, 800, 3200):
        base = predict(open_model("llama3-8b"), plan, with_bandwidth(gbit, 64))
        held, own = (what_if(base, [f"{ZIP} lane={lane}"]).summary()["speedup"] for lane in ("compute", "own"))
        time_ms = base.step_time_ns / 1e6
        print(f"  {gbit:5d} Gb/s a GPU: {time_ms:8.1f} ms, {held:.3f}x; codecs on a lane of their own {own:.3f}x")
    print("TACO: gpt3-175b, 64 GPUs, tp 16, pp 4:", TACO)
    plan = Plan.from_dict({"gpus": 64, "tp": 16, "pp": 4, "global_batch": 16})
    for gbit in (100, 200, 400):
        base = predict(open_model("gpt3-175b"), plan, with_bandwidth(gbit, 64), check=False)
        gain = what_if(base, [TACO]).summary()["speedup"]
        print(f"  {gbit:5d} Gb/s a GPU: {base.step_time_ns / 1e6:8.1f} ms, {gain:.3f}x")
    print("RRFP: llama3-8b, 8 stages, 32 micro-batches, five seeds: fixed order over hint")
    plan = Plan.from_dict({"gpus": 8, "pp": 8, "global_batch": 32})
    base = predict(open_model("llama3-8b"), plan, open_system("dgx-h100"), check=False)
    for spread in (0.0, 0.2, 0.5, 1.0):
        fixed = hint = 0
        for seed in range(5):
            noise = {"jitter": {"action": spread}, "seed": seed}
            fixed += simulated_again(base, **noise).time_ns
            hint += what_if(base, ["relax"], policy="hint", **noise).edited.time_ns
        print(f"  spread {spread}: {fixed / hint:.3f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", action="store_true")
    curves() if parser.parse_args().curves else times()
    return 0


if __name__ == "__main__":
    sys.exit(main())
