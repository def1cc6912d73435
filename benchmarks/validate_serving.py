"""Serving against measured runs, and how fast the loop is.

    python benchmarks/validate_serving.py                # the reference data beside the checkout, or $ETUDE_SHARED
    python benchmarks/validate_serving.py --speed        # the Azure hour on 16 replicas, a million requests
    python benchmarks/validate_serving.py --fit          # the factors of the stack torch-flash2, from the step grid

- reference engine (`h200_serving`): recorded step times in our loop; times from the step grid of the folder; times of
  the catalogue, whose factors were fitted to the step grid of the 8b model and to no run.
- vLLM (`vllm_runs`): with the operator profile of the device and model, and with the catalogue alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path

import numpy as np

from etude.generate import Plan
from etude.generate.model import open_model
from etude.machine import open_system
from etude.serve import Engine, deployed, request_stream, serve, summary
from etude.serve.measured import replayed
from etude.serve.measured.reference import fitted
from etude.serve.requests import poisson

STEPS = ("recorded", "grid", "catalogue")


def shared() -> Path:
    return Path(os.environ.get("ETUDE_SHARED") or Path(__file__).resolve().parents[2] / "shared")


def shown(error: dict[str, float]) -> str:
    return "  ".join(f"{name.removesuffix('_s')} {error[name]:+7.2%}" for name in ("ttft_s", "tpot_s", "latency_s"))


def reference(folder: Path) -> None:
    for model in ("llama8b", "llama1b"):
        configs = json.loads((folder / f"configs_{model}.json").read_text())["configs"]
        for steps in STEPS:
            errors = {c["config"]: replayed(folder, config=c["config"], steps=steps)["error"] for c in configs}
            for config, error in errors.items():
                print(f"{steps:10} {config:42} {shown(error)}")
            for name in ("ttft_s", "tpot_s"):
                size = np.abs([error[name] for error in errors.values()])
                what = f"{model}: {name.removesuffix('_s')}"
                print(f"{steps:10} {what} median {np.median(size):.2%}, worst {size.max():.2%}")


def vllm(folder: Path, profiles: Path) -> None:
    for run in sorted(path.parent for path in folder.rglob("meta.json")):
        model = json.loads((run / "meta.json").read_text())["model"]
        profile = profiles / run.parent.name / model / "bf16"
        name = str(run.relative_to(folder))
        if profile.is_dir():
            print(f"profile    {name:42} {shown(replayed(run, ops=profile)['error'])}")
        print(f"catalogue  {name:42} {shown(replayed(run)['error'])}")


def speed(requests: Path) -> None:
    engine, start = Engine(), time.process_time()
    placed = deployed(open_model("llama3-8b"), Plan(gpus=1), open_system("dgx-h100"), engine)
    print(f"step costs of llama3-8b on an H100: {time.process_time() - start:.2f} CPU s (0.1 where they are kept)")
    streams = {
        "the Azure conversation hour on 16 replicas": (lambda: request_stream(requests / "azure_2023_conv.csv"), 16),
        "a million requests of 512 in, 128 out on 16 replicas": (lambda: poisson(160.0, 1_000_000, 512, 128), 16),
    }
    serve(poisson(1.0, 10, 8, 8), engine, placed.cost)  # compiled before the clock starts
    for name, (read, replicas) in streams.items():
        start = time.process_time()
        stream = read()
        opened = time.process_time()
        found = serve(stream, engine, placed.cost, replicas=replicas, router="least", blocks=placed.blocks)
        numbers, done = summary(found), time.process_time()
        print(
            f"{name}: {len(stream):,} requests, {numbers['passes']:,} passes; {opened - start:.2f} CPU s to read, "
            f"{done - opened:.2f} to serve; ttft p99 {numbers['ttft_s']['p99'] * 1e3:.0f} ms"
        )
    stream = request_stream(requests / "azure_2023_conv.csv")

    def route(request, replicas, now_s):
        return min(range(len(replicas)), key=lambda i: replicas[i].running + replicas[i].waiting)

    times = []
    for router in ("least", route):
        start = time.process_time()
        serve(stream, engine, placed.cost, replicas=16, router=router, blocks=placed.blocks)
        times.append(time.process_time() - start)
    print(f"the same hour with a router in Python: {times[1] / times[0]:.1f} times the CPU")
    print(f"memory at most: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--fit", action="store_true")
    given = parser.parse_args()
    measured = shared() / "measured"
    if not measured.is_dir():
        print(f"needs the reference data ({measured})", file=sys.stderr)
        return 0
    if given.fit:
        print(fitted(measured / "h200_serving", "llama8b"))
    elif given.speed:
        speed(shared() / "requests")
    else:
        reference(measured / "h200_serving")
        vllm(measured / "vllm_runs", measured / "vllm_profiles")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
