"""Rows of measured images and videos (the columns of ML.ENERGY's leaderboard), predicted: passes of the network on one
GPU, times the steps of the sampler and the batch. Text encoders and the decoder of pixels are left out."""

from __future__ import annotations

from functools import cache
from typing import Final

from etude.cost.stacks import Efficiency, Stack
from etude.errors import UsageError
from etude.generate import Plan
from etude.generate.model import open_model
from etude.machine import open_system
from etude.predict import predict
from etude.serve.measured.systems import SYSTEMS, number

ATTENTION: Final = {"H100": 1.75, "B200": 3.34}
"""How much slower the attention of xDiT 0.4.5 is than that of the device's entry, from one row of HunyuanVideo on each:
benchmarks/validate_diffusion.py."""
PASSES: Final = {"hunyuanvideo": 1, "flux.1-dev": 1, "stable-diffusion-3.5": 2, "sd3.5": 2, "wan2.1": 2, "cogvideox": 2}
"""Of a step, by how the name of a model begins: two where guidance takes another, one where it is an input."""
PATCH: Final = 16
"""Pixels of a token each way: 8 of the encoder, times 2."""
FRAMES: Final = 4
"""Of a frame of the encoder, the first of which stands alone."""
PAIRED: Final = "cogvideox1.5"
"""Whose tokens are of two such frames."""


def image_latency_s(row: dict[str, str]) -> float:
    """Of a batch of images or videos."""
    gpus = int(number(row, "num_gpus"))
    if gpus != 1:
        raise UsageError(f"how an image is spread over {gpus} GPUs is not stated")
    if row["gpu"] not in ATTENTION:
        raise UsageError(f"unknown GPU `{row['gpu']}`", hint=f"known: {', '.join(ATTENTION)}")
    name = open_model(row["model"]).name.lower()
    passes = next((count for family, count in PASSES.items() if name.startswith(family)), 0)
    if not passes:
        raise UsageError(f"the passes of a step of `{row['model']}` are not known", hint=f"known: {', '.join(PASSES)}")
    count = passes * number(row, "inference_steps") * number(row, "batch_size")
    return _pass_s(row["model"], _tokens(name, row), row["gpu"]) * count


def _tokens(name: str, row: dict[str, str]) -> int:
    sort = "video" if row.get("num_frames") else "image"
    height, width = (int(number(row, f"{sort}_{side}")) for side in ("height", "width"))
    frames = 1
    if sort == "video":
        frames = (int(number(row, "num_frames")) - 1) // FRAMES + 1
        frames = -(-frames // 2) if name.startswith(PAIRED) else frames
    return frames * (height // PATCH) * (width // PATCH)


@cache
def _pass_s(model: str, tokens: int, gpu: str) -> float:
    by = Stack(name="xdit", efficiency={"any": Efficiency(attention=ATTENTION[gpu])})
    plan = Plan(gpus=1, seq=tokens, train="forward")
    return predict(open_model(model), plan, open_system(SYSTEMS[gpu]), stack=by, check=False).step_time_ns / 1e9
