"""Diffusion models on one GPU: measured images and videos against passes of the network, and why they differ.

python benchmarks/validate_diffusion.py ../shared/measured/ml_energy_diffusion.csv

The table is ML.ENERGY's (xDiT 0.4.5). A sampler's step is one pass of the network, or two where guidance takes another;
text encoders and the decoder of pixels are left out, as in the catalogue. Attention is nearly all of HunyuanVideo: its
rows say how much slower the attention of that software is than that of the device's catalogue entry. The last column
predicts all other models with that one factor for each GPU.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from etude.cost.stacks import Efficiency, Stack
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.steps import predict
from etude.steps.step import Prediction

SYSTEMS = {"H100": "dgx-h100", "B200": "dgx-b200"}


@dataclass(frozen=True, slots=True)
class Case:
    """A model of the table: its name in the catalogue, tokens of its image or video, passes of a step."""

    model: str
    tokens: int
    passes: int


CASES = {
    "tencent/HunyuanVideo": Case("hunyuanvideo", 33 * 45 * 80, 1),  # 129 frames of 720 x 1280, guidance is an input
    "black-forest-labs/FLUX.1-dev": Case("flux.1-dev", 64 * 64, 1),  # 1024 x 1024, guidance is an input
    "stabilityai/stable-diffusion-3.5-large": Case("sd3.5-large", 64 * 64, 2),
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": Case("wan2.1-1.3b", 21 * 30 * 52, 2),  # 81 frames of 480 x 832
    "Wan-AI/Wan2.1-T2V-14B-Diffusers": Case("wan2.1-14b", 21 * 30 * 52, 2),
}
"""The first is the one that factors are taken from."""


def passed(case: Case, gpu: str, attention: float = 1.0) -> Prediction:
    """One pass, with attention so many times slower."""
    by = Stack(name="table", efficiency={"any": Efficiency(attention=attention)})
    plan = Plan(gpus=1, seq=case.tokens, train="forward")
    return predict(open_model(case.model), plan, open_system(SYSTEMS[gpu]), stack=by, check=False)


def attention_of(found: Prediction) -> tuple[float, float]:
    """(seconds, FLOPs) of attention in a pass."""
    trace, timing = found.generated.job.traces[0], found.simulated.timing
    codes, words = trace.coded("name")
    rows = np.array(["attention" in w for w in words] + [False])[codes]
    took = (timing.end_ns[0] - timing.start_ns[0])[rows].sum()
    return float(took) / 1e9, float(trace.flops[rows].sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    with parser.parse_args().table.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["num_gpus"] == r["batch_size"] == "1" and r["model"] in CASES]
    rows.sort(key=lambda r: (r["gpu"], list(CASES).index(r["model"])))
    slower: dict[str, float] = {}
    ratios: list[float] = []
    print(f"{'model':14s} gpu   measured s  predicted  ratio  attention of a pass          with its factor")
    for row in rows:
        case, gpu = CASES[row["model"]], row["gpu"]
        count, measured = case.passes * int(row["inference_steps"]), float(row["batch_latency_s"])
        plain = passed(case, gpu)
        seconds, flops = attention_of(plain)
        whole = plain.step_time_ns / 1e9
        if gpu not in slower:  # all that is over is attention's
            slower[gpu] = (measured / count - whole + seconds) / seconds
            told = f"{slower[gpu]:.2f} times slower: {flops / seconds / slower[gpu] / 1e12:.0f} TFLOP/s"
        else:
            ratios.append(passed(case, gpu, slower[gpu]).step_time_ns / 1e9 * count / measured)
            told = f"{ratios[-1]:.2f}"
        print(f"{case.model:14s} {gpu}  {measured:10.1f} {whole * count:10.1f}  {whole * count / measured:5.2f}  "
              f"{seconds / whole:4.0%} of it, {flops / seconds / 1e12:5.0f} TFLOP/s   {told}")  # fmt: skip
    print(
        f"with the factor of each GPU: {min(ratios):.2f} to {max(ratios):.2f} of what was measured, {len(ratios)} rows"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
