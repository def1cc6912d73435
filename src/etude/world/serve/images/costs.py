"""Times of the tasks of an image or a video, by size and by devices that share a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etude.base.errors import EtudeError, UsageError
from etude.kernels.arrays import I64
from etude.machine import System
from etude.world.serve.deployment import device_name
from etude.world.serve.measured import asked_images
from etude.world.serve.stacks import serving_stack


@dataclass(frozen=True, slots=True, eq=False)
class ImageCosts:
    """Whole ns."""

    degrees: tuple[int, ...]
    step_ns: I64
    """(size, degree, requests that share it - 1); 0: heads or tokens do not divide by this degree."""
    decode_ns: I64
    """By size, on one device."""
    encode_ns: I64
    """Text encoding by size, on one device."""


def image_costs(
    model: str, system: System, sizes: I64, degrees: Sequence[int], *, stack: str = "xdit-0.4", batch: int = 1,
    encode_ns: int = 0,
) -> ImageCosts:  # fmt: skip
    """Passes generated and simulated, with the factors of a stack. Text encoders are not in the catalogue: `encode_ns`
    is the time of one."""
    software = serving_stack(stack, device_name(system))
    step = np.zeros((len(sizes), len(degrees), batch), np.int64)
    decode = np.zeros(len(sizes), np.int64)
    for i, (frames, height, width) in enumerate(np.asarray(sizes).tolist()):
        problem: EtudeError | None = None
        for j, degree in enumerate(degrees):
            for k in range(batch):
                try:
                    one = asked_images(model, system, degree, k + 1, (frames, height, width))
                except EtudeError as why:
                    problem = why
                    continue
                step[i, j, k] = round(one.step_ns(software))
                decode[i] = round(one.decode_ns(software) / (k + 1))
        if not step[i].any():
            raise problem or UsageError(f"no degree is possible for {frames} x {height} x {width}")
    return ImageCosts(tuple(degrees), step, decode, np.full(len(sizes), encode_ns, np.int64))
