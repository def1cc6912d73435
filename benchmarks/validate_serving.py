"""Serving against measured runs, and how fast the loop is.

    python benchmarks/validate_serving.py                # the reference data beside the checkout, or $ETUDE_SHARED
    python benchmarks/validate_serving.py --speed        # the Azure hour on 16 replicas, a million requests
    python benchmarks/validate_serving.py --rows         # rows of ML.ENERGY's leaderboard, fitted and held out
    python benchmarks/validate_serving.py --fit          # the factors of the stack torch-flash2, from the step grid
    python benchmarks/validate_serving.py --fit-rows     # those of vllm-0.11, from the rows of some models (minutes)
    python benchmarks/validate_serving.py --fit-hosts    # below which length of a pass one host decides, from the same

- reference engine (`h200_serving`): recorded step times in our loop; times from the step grid of the folder; times of
  the catalogue, whose factors were fitted to the step grid of the 8b model and to no run.
- rows (`ml_energy_llm.csv`): constants of the stack vllm-0.11 for each device, none of a model, are fitted to the text
  rows of the models in `serving_split.csv`, with a pull of each factor towards 1; all other models are held out.
- vLLM (`vllm_runs`): with the operator profile of the device and model, and with the catalogue alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from etude.decide.score import score
from etude.decide.score.serving import FIGURES
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.world.serve import Engine, deployed, request_stream, serve, summary
from etude.world.serve.fit import descend
from etude.world.serve.hooks import Hooks
from etude.world.serve.measured import replayed
from etude.world.serve.measured.diffusion import images as images_of
from etude.world.serve.measured.reference import fitted
from etude.world.serve.measured.rows import NUMBERS, middle, read_rows, steady, steady_figures
from etude.world.serve.pass_time import passes_ns
from etude.world.serve.stacks import ServingStack
from etude.world.serve.workloads import poisson

STEPS = ("recorded", "grid", "catalogue")


def shared() -> Path:
    return Path(os.environ.get("ETUDE_SHARED") or Path(__file__).resolve().parents[2] / "shared")


@cache
def scored(folder: Path, ops: Path | None = None) -> dict[str, dict[str, float]]:
    """Errors of each run of a folder, by its name."""
    rows = score(folder, kind="runs", ops=ops).rows
    return {row["row"]: {name: row["predicted"][name] / row["measured"][name] - 1 for name in row["measured"]}
            for row in rows}  # fmt: skip


def shown(error: dict[str, float]) -> str:
    return "  ".join(f"{name.removesuffix('_s')} {error[name]:+7.2%}" for name in ("ttft_s", "tpot_s", "latency_s"))


def reference(folder: Path) -> None:
    for model in ("llama8b", "llama1b"):
        configs = json.loads((folder / f"configs_{model}.json").read_text())["configs"]
        for steps in STEPS:
            if steps == "catalogue":
                errors = {config: error for config, error in scored(folder).items() if config.startswith(model)}
            else:
                errors = {c["config"]: replayed(folder, config=c["config"], steps=steps)["error"] for c in configs}
            for config, error in errors.items():
                print(f"{steps:10} {config:42} {shown(error)}")
            for name in ("ttft_s", "tpot_s"):
                size = np.abs([error[name] for error in errors.values()])
                what = f"{model}: {name.removesuffix('_s')}"
                print(f"{steps:10} {what} median {np.median(size):.2%}, worst {size.max():.2%}")
    means(folder)


def means(folder: Path) -> None:
    """Mean errors of the catalogue over all runs; without the configurations that, measured again, gave a first token
    twice as late or more; without those of which a figure moved by 40% or more; and over configurations, each compared
    with the geometric mean of its runs."""
    given = [c for path in sorted(folder.glob("configs_*.json")) for c in json.loads(path.read_text())["configs"]]
    own = {c["config"]: np.array([c["ttft_ms_mean"], c["tpot_ms_mean"]]) for c in given}
    again = {name: np.abs(np.log(own[name + "-r2"] / one)) for name, one in own.items() if name + "-r2" in own}
    for name, apart in again.items():
        print(f"measured twice {name:38} ttft x{np.exp(apart[0]):.2f}  tpot x{np.exp(apart[1]):.2f}")
    unlike = {
        "all": set(),
        "but those that differ from themselves twice": {n for n, apart in again.items() if apart[0] > np.log(2)},
        "but those that differ by 40%": {n for n, apart in again.items() if apart.max() > np.log(1.4)},
    }
    errors = scored(folder)
    for what, names in unlike.items():
        kept = [error for name, error in errors.items() if name.removesuffix("-r2") not in names]
        ttft, tpot = (np.mean(np.abs([error[name] for error in kept])) for name in ("ttft_s", "tpot_s"))
        print(f"catalogue, {what}: {len(kept)} runs, mean error ttft {ttft:.1%}, tpot {tpot:.1%}")
    by_name = {name: [errors[n] for n in (name, name + "-r2") if n in errors] for name in own if name in errors}
    by_name = {name: its for name, its in by_name.items() if not name.endswith("-r2")}
    ttft, tpot = (
        np.mean([abs(np.expm1(np.mean([np.log1p(error[figure]) for error in its]))) for its in by_name.values()])
        for figure in ("ttft_s", "tpot_s")
    )
    print(f"catalogue, by the geometric mean of a configuration's runs: {len(by_name)} configurations, "
          f"mean error ttft {ttft:.1%}, tpot {tpot:.1%}")  # fmt: skip


def vllm(folder: Path, profiles: Path) -> None:
    for run in sorted(path.parent for path in folder.rglob("meta.json")):
        model = json.loads((run / "meta.json").read_text())["model"]
        profile = profiles / run.parent.name / model / "bf16"
        name = str(run.relative_to(folder))
        if profile.is_dir():
            print(f"profile    {name:42} {shown(*scored(run, ops=profile).values())}")
        print(f"catalogue  {name:42} {shown(*scored(run).values())}")


TEXT = ("lm-arena-chat", "gpqa")
FACTORS = {
    "products": 1.0, "dense": 1.0, "narrow": 1.15, "experts": 0.9, "wide_experts": 1.1, "narrow_experts": 1.05,
    "packed_experts": 0.65, "decode_attention": 1.1,
}  # fmt: skip
HOST = {
    "group_ns": 2.5e4, "word_ns": 0.1, "kernel_ns": 1000.0, "pass_ns": 5e5, "sequence_ns": 6e3, "schedule_ns": 1.2e4,
    "launch_ns": 4e4, "one_launch_ns": 4e4,
}  # fmt: skip
"""Where the search begins."""
PULL, HOST_PULL = 0.04, 0.004
"""Weights, beside the mean error, of the squared logarithms of factors, and of other figures over where they begin:
work is as the catalogue has it, unless rows say otherwise."""


def rows(path: Path) -> None:
    given, found, fit = read_rows(path), score(path, kind="serving").rows, split("serving_split.csv")
    print(f"{len(found)} rows, {sum('refused' in one for one in found)} refused")
    parts = [
        ("all", TEXT, ""),
        ("fit", TEXT, ""),
        ("held out", TEXT, ""),
        ("held out", TEXT, "H100"),
        ("held out", TEXT, "B200"),
        ("held out", TEXT, "one B200"),
        ("held out", TEXT, "others"),
    ]
    for what, tasks, gpu in [*parts, ("all", ("image-chat", "video-chat"), "")]:
        chosen = [
            one for row, one in zip(given, found, strict=True)
            if row["task"] in tasks and _of(row, gpu) and "predicted" in one
            and (what == "all" or (row["model"] in fit) == (what == "fit"))
        ]  # fmt: skip
        kind = f"{what}, {'text' if tasks == TEXT else 'pictures'} {gpu}"
        for name, (figure, _) in FIGURES.items():
            off = np.abs([one["predicted"][figure] / one["measured"][figure] - 1 for one in chosen])
            half, most = np.quantile(off, [0.5, 0.9])
            near = (off <= 0.3).mean()
            print(f"{kind:23} {len(chosen):4} rows  {name:32} median {half:6.1%}  p90 {most:7.1%}  near {near:4.0%}")
    outside(list(zip(given, found, strict=True)), fit)


def outside(pairs: list[tuple[dict[str, str], dict[str, Any]]], fit: set[str]) -> None:
    """The errors of text rows but those that the basis marks as unknown, by a rule found on the rows fitted to."""
    pairs = [(row, one) for row, one in pairs if row["task"] in TEXT and "predicted" in one]
    for what, models in (("all", None), ("fit", True), ("held out", False)):
        part = [one for row, one in pairs if models is None or (row["model"] in fit) == models]
        known = [one for one in part if all(its["evidence"] for its in one["basis"].values())]
        print(
            f"{what}, text: no evidence for {len(part) - len(known)} of {len(part)} ({1 - len(known) / len(part):.1%})"
        )
        for name, (figure, _) in FIGURES.items():
            off = np.abs([one["predicted"][figure] / one["measured"][figure] - 1 for one in known])
            half, most = np.quantile(off, [0.5, 0.9])
            print(f"{what + ', outside':23} {len(known):4} rows  {name:32} median {half:6.1%}  p90 {most:7.1%}")


FAR = 0.3
"""Error of a row that its host decides."""


def fit_hosts(path: Path) -> None:
    """For each kind of GPU and number of ranks, up to which pass there are rows fitted to that are FAR off."""
    fit, given, found = split("serving_split.csv"), read_rows(path), score(path, kind="serving").rows
    passes: dict[tuple[str, str], list[tuple[float, bool]]] = {}
    for row, one in zip(given, found, strict=True):
        if row["task"] in TEXT and row["model"] in fit and "predicted" in one:
            pairs = [(one["predicted"][name], one["measured"][name]) for name in ("itl_s", "tokens_per_s")]
            far = any(abs(a / b - 1) > FAR for a, b in pairs)
            passes.setdefault((row["gpu"], row["num_gpus"]), []).append((pairs[0][0], far))
    for (gpu, ranks), its in sorted(passes.items()):
        longest = max((pass_s for pass_s, far in its if far), default=0.0)
        below = sum(pass_s <= longest for pass_s, _ in its)
        most = f"their longest pass {longest * 1e3:.1f} ms, and {below} rows are up to it" if longest else ""
        print(f"{gpu} x{ranks}: {sum(far for _, far in its)} of {len(its)} rows far off", most)


def _of(row: dict[str, str], gpu: str) -> bool:
    """Whether a row is of these GPUs; `one B200` are those of a single one, `others` all but these."""
    one = row["gpu"] == "B200" and row["num_gpus"] == "1"
    return {"one B200": one, "others": not one}.get(gpu, row["gpu"].startswith(gpu))


def split(name: str) -> set[str]:
    """Models that constants are fitted to; written before any error was seen."""
    with (Path(__file__).parent / name).open() as file:
        return {row["model"] for row in csv.DictReader(file)}


def images(path: Path) -> None:
    """Rows of images and videos, models fitted to and held out."""
    given, found, fit = read_rows(path), score(path, kind="diffusion").rows, split("diffusion_split.csv")
    print(f"{len(found)} rows, {sum('refused' in one for one in found)} refused")
    off: dict[str, list[float]] = {}
    for row, one in zip(given, found, strict=True):
        if "predicted" in one:
            error = one["predicted"]["latency_s"] / one["measured"]["latency_s"] - 1
            part = "fit" if row["model"] in fit else "held out"
            for key in (row["model"], part, f"{part}, {row['gpu']}", f"{part}, {row['num_gpus']} GPUs"):
                off.setdefault(key, []).append(error)
    for name, errors in sorted(off.items()):
        half, most = np.quantile(np.abs(errors), [0.5, 0.9])
        print(f"{name:40} {len(errors):3} rows  mean {np.mean(errors):+7.1%}  median {half:6.1%}  p90 {most:6.1%}")


IMAGES = {"attention": 2.7, "rest": 2.0, "network": 2.0, "kernel_ns": 8e4, "exchange_ns": 8e4, "pixel_ns": 200.0}
"""Products are as the catalogue has them: rows of two models do not tell them from the rest."""


def fit_images(path: Path) -> None:
    """Constants of the stack xdit-0.4 for each device."""
    fit = split("diffusion_split.csv")
    for gpu in ("H100", "B200"):
        chosen = [(images_of(row), row) for row in read_rows(path) if row["gpu"] == gpu and row["model"] in fit]

        def error(figures: dict[str, float], chosen=chosen) -> float:
            stack = ServingStack(**figures)
            off = [abs(np.log(one.latency_s(stack) / float(row["batch_latency_s"]))) for one, row in chosen]
            return float(np.minimum(off, 0.3).mean() + 0.1 * np.mean(off))

        best = descend(IMAGES, error)
        print(gpu, len(chosen), "rows", {name: round(value, 3) for name, value in best.items()})


ENGINE = {"network": 0.0, "direct": 1.0, "dense": 1.0}


class Parts:
    """A row, taken apart once: times of its passes are sums of parts times figures, so that a fit takes seconds.
    What it says is what `steady_figures` says (which `--fit-rows` checks at the end)."""

    def __init__(self, row: dict[str, str]) -> None:
        self.asked, self.row = steady(row), row
        shapes, self.weights = self.asked.passes()

        def times(**figures: float) -> np.ndarray:
            stack = ServingStack(**{**ENGINE, **figures})
            return passes_ns(self.asked.tables.step_cost(stack, graphs=self.asked.graphs), shapes)

        whole = times()
        factors = [times(**{name: 2.0}) - whole for name in FACTORS]
        self.parts = np.array([*factors, *(times(**{name: 1e3}) / 1e3 - whole / 1e3 for name in COUNTED)])
        self.others = whole - sum(factors)
        self.kernels = float(self.asked.tables.kernels[0])
        self.eager = shapes[:, 0] + shapes[:, 2] > max(self.asked.graphs)
        self.sequences = shapes[:, 2] + shapes[:, 4]
        self.measured = [float(row[name]) for name in NUMBERS[:2]]

    def error(self, figures: dict[str, float]) -> list[float]:
        device = np.array([figures[name] for name in (*FACTORS, *COUNTED)]) @ self.parts + self.others
        one = self.asked.gpus == 1
        launches = self.eager * figures["one_launch_ns" if one else "launch_ns"] * self.kernels
        schedule = figures["schedule_ns"] * self.sequences
        host = launches + schedule if one else np.maximum(launches, schedule)
        own = figures["pass_ns"] + figures["sequence_ns"] * self.sequences
        time_ns = np.maximum(device + figures["kernel_ns"] * self.kernels, host) + own
        tokens = self.asked.copies * self.asked.batch / (self.weights @ time_ns) * 1e9
        between_ms = middle(time_ns, self.weights) / 1e6
        return [abs(np.log(between_ms / self.measured[0])), abs(np.log(tokens / self.measured[1]))]


COUNTED = ("group_ns", "word_ns")
"""Figures of HOST that times of passes are linear in, as in factors."""


WIDE = list(FACTORS).index("wide_experts")


def fit_rows(path: Path) -> None:
    fit, tiles = split("serving_split.csv"), 1.0
    given = [row for row in read_rows(path) if row["task"] in TEXT and row["model"] in fit]
    for gpu in ("H100", "B200"):
        chosen = [Parts(row) for row in given if row["gpu"] == gpu]

        def error(figures: dict[str, float], chosen=chosen) -> float:
            off = [size for one in chosen for size in one.error(figures)]
            pull = PULL * sum(np.log(figures[name]) ** 2 for name in FACTORS)
            pull += HOST_PULL * sum(np.log(figures[name] / HOST[name]) ** 2 for name in HOST)
            return float(np.minimum(off, 0.3).mean() + 0.1 * np.mean(off) + pull)

        best = descend({**FACTORS, **HOST}, error)
        if any(one.parts[WIDE].any() for one in chosen):
            tiles = best["wide_experts"] / best["experts"]
        best["wide_experts"] = tiles * best["experts"]  # of the kernel's tiles: where no row shows it, as on H100
        print(gpu, len(chosen), "rows", {name: round(value, 3) for name, value in best.items()})
        found = [steady_figures(one.asked, ServingStack(**{**ENGINE, **best})) for one in chosen]
        own = [abs(np.log(f[name] / float(one.row[name]))) for f, one in zip(found, chosen, strict=True)
               for name in NUMBERS[:2]]  # fmt: skip
        print(
            f"  mean error {np.mean(own):.4f}, by parts {np.mean([e for one in chosen for e in one.error(best)]):.4f}"
        )


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
        found = serve(
            stream, engine, placed.cost, replicas=replicas, router="least", blocks=placed.blocks, energy=placed.energy
        )
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
        serve(stream, engine, placed.cost, replicas=16, router=router, blocks=placed.blocks, energy=placed.energy)
        times.append(time.process_time() - start)
    print(f"the same hour with a router in Python: {times[1] / times[0]:.1f} times the CPU")
    few, times = stream.first(200), []
    for hooks in (Hooks(), Hooks(evict=lambda running, replica, now_s: running[-1]["request"])):
        start = time.process_time()
        found = serve(few, engine, placed.cost, router="least", blocks=placed.blocks, hooks=hooks)
        times.append(time.process_time() - start)
    passes = int(found.count("PASSES").sum())
    print(
        f"200 requests, {passes:,} passes, with a hook inside the loop: {times[1]:.2f} CPU s, "
        f"{times[1] / times[0]:.0f} times the compiled loop, {times[1] / passes * 1e6:.0f} us a pass"
    )
    print(f"memory at most: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--images", action="store_true")
    parser.add_argument("--fit-rows", action="store_true")
    parser.add_argument("--fit-hosts", action="store_true")
    parser.add_argument("--fit-images", action="store_true")
    given = parser.parse_args()
    measured = shared() / "measured"
    if not measured.is_dir():
        print(f"needs the reference data ({measured})", file=sys.stderr)
        return 0
    if given.fit:
        print(fitted(measured / "h200_serving", "llama8b"))
    elif given.rows:
        rows(measured / "ml_energy_llm.csv")
    elif given.images:
        images(measured / "ml_energy_diffusion.csv")
    elif given.fit_rows:
        fit_rows(measured / "ml_energy_llm.csv")
    elif given.fit_hosts:
        fit_hosts(measured / "ml_energy_llm.csv")
    elif given.fit_images:
        fit_images(measured / "ml_energy_diffusion.csv")
    elif given.speed:
        speed(shared() / "requests")
    else:
        reference(measured / "h200_serving")
        vllm(measured / "vllm_runs", measured / "vllm_profiles")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
