"""Rows of measured images and videos (the columns of ML.ENERGY's leaderboard), predicted: passes of the network, times
the steps of the sampler, plus the pixel decoder.

How an image is spread over several GPUs is not stated. xDiT splits its tokens by heads (Ulysses), around a ring, or by
heads inside of a ring: the mean of the layouts that the model's heads allow is used, and of models with convolutions an
even part of one GPU's work. Text encoders are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from etude.base.errors import EtudeError, UsageError
from etude.cost.ops import OpClass
from etude.cost.traces import ops_of
from etude.kernels.arrays import F64
from etude.machine import System, open_system
from etude.machine.system_key import SystemKey
from etude.make.generate import Plan
from etude.make.generate.model import Family, open_model
from etude.model.schema import Kind
from etude.steps import predict
from etude.world.serve.measured.systems import SYSTEMS, number
from etude.world.serve.stacks import ServingStack, serving_stack

if TYPE_CHECKING:
    from etude.steps import Prediction

STACK: Final = "xdit-0.4"
GUIDANCE: Final = {
    "hunyuanvideo": (1, 1), "flux.1-dev": (1, 1), "stable-diffusion-3.5": (1, 2), "sd3.5": (1, 2), "cogvideox": (1, 2),
    "wan2.1": (2, 1), "flux.2": (1, 1),
}  # fmt: skip
"""Passes of a step, and samples of a pass for each image, by how the name of a model begins: where guidance is not an
input of the network, the step without the text is another sample of the same pass, or another pass."""
APART: Final = (2, 1)
"""Values of other models."""
PATCH: Final = 16
"""Pixels of a token each way: 8 of the encoder, times 2."""
COARSE: Final = "wan2.2-ti2v"
"""Models whose encoder has 16 pixels each way, so that a token has 32."""
FRAMES: Final = 4
"""Frames per frame of the encoder, except for the first one."""
PAIRED: Final = "cogvideox1.5"
"""Models whose tokens cover two such frames."""
RING: Final = "ring"
MOST: Final = 4
"""Most samples of a generated pass; more of them scale linearly."""
ROTARY: Final = 2 * 48
"""Bytes that PyTorch moves for the rotary embedding of one element of queries and one of keys, operator by operator: to
fp32 (2 + 4), pairs swapped (4 + 4), times cosines (4 + 4), times sines (4 + 4), their sum (8 + 4), and back (4 + 2)."""
LIKE: Final = {"image": ("flux.1-dev", 11.9), "video": ("wan2.1-14b", 14.3)}
"""Model, and its billions of parameters, whose shape represents an unknown model, with a scaled number of layers."""
JOINED: Final = "tokens"
"""The part of a model that gives a stream another number of tokens."""
CROSS: Final = "cross.core"
"""End of the module of attention to the text, of which every GPU has all: nothing is sent for it, and it is one."""
FLAT: Final = 1 / 3
"""Work per pixel of an image decoder over that of one whose kernels cover three frames."""


@dataclass(frozen=True, slots=True)
class DenoisingTimes:
    """Times of a pass on each GPU, in ns; operations that its host issues."""

    products: float
    attention: float
    """At the peak rate of the device: how fast it is depends on the kernel more than on the shape."""
    rest: float
    network: float
    """In parallel with attention if `hidden`, else after what it carries."""
    operations: int
    """Those that compute."""
    exchanges: int
    """Those that send or receive."""
    hidden: bool

    def host_ns(self, stack: ServingStack) -> float:
        """Time of the host to issue its operations."""
        return stack.kernel_ns * self.operations + stack.exchange_ns * self.exchanges

    def time_ns(self, stack: ServingStack, samples: float) -> float:
        """Time for this multiple of the samples it was generated for."""
        attention, network = stack.attention * self.attention, stack.network * self.network
        together = max(attention, network) if self.hidden else attention + network
        device = stack.products * self.products + stack.rest * self.rest + together
        return max(device * samples, self.host_ns(stack))


@dataclass(frozen=True, slots=True)
class Images:
    """A row as the costs of passes see it."""

    layouts: tuple[DenoisingTimes, ...]
    samples: float
    """Relative to the samples that passes were generated for; times layers, relative to the model of that shape."""
    passes: float
    decoded: float
    """Pixels of all frames of a batch, in units of videos."""
    asked: tuple[str, int, SystemKey, int, int]
    """Of `denoising_passes`."""

    def latency_s(self, stack: ServingStack) -> float:
        return (self.step_ns(stack) + self.decode_ns(stack)) / 1e9

    def step_ns(self, stack: ServingStack) -> float:
        """Time of all its steps."""
        times = [work.time_ns(stack, self.samples) for work in self.layouts]
        return self.passes * sum(times) / len(times)

    def decode_ns(self, stack: ServingStack) -> float:
        """Time of its pixels."""
        return stack.pixel_ns * self.decoded


def image_latency_s(row: dict[str, str]) -> float:
    """Latency of a batch of images or videos."""
    return images(row).latency_s(serving_stack(STACK, row["gpu"].lower()))


def images(row: dict[str, str]) -> Images:
    """The request of a row."""
    if row["gpu"] not in SYSTEMS:
        raise UsageError(f"unknown GPU `{row['gpu']}`", hint=f"known: {', '.join(SYSTEMS)}")
    gpus, batch = max(int(number(row, "num_gpus")), 1), max(int(number(row, "batch_size")), 1)
    sort = "video" if row.get("num_frames") else "image"
    height, width = (int(number(row, f"{sort}_{side}")) for side in ("height", "width"))
    frames = int(number(row, "num_frames")) if sort == "video" else 1
    return asked_images(
        row["model"], open_system(SYSTEMS[row["gpu"]]), gpus, batch, (frames, height, width), sort=sort,
        steps=number(row, "inference_steps"), billions=number(row, "total_params_b", 0), inside=True,
    )  # fmt: skip


def asked_images(
    model: str,
    system: System,
    gpus: int,
    batch: int,
    shape: tuple[int, int, int],
    *,
    sort: str = "",
    steps: float = 1.0,
    billions: float = 0.0,
    inside: bool = False,
) -> Images:
    """A batch of `shape` (frames, height, width) on this many GPUs of a system; `inside`: tokens may also be split by
    heads inside of a ring."""
    frames, height, width = shape
    name = model.rpartition("/")[2].lower()
    passes, each = next((found for family, found in GUIDANCE.items() if name.startswith(family)), APART)
    own, on = min(batch * each, MOST), SystemKey.of(system)
    network, scale = _network(model, sort or ("video" if frames > 1 else "image"), billions)
    return Images(
        layouts=_layouts(network, _tokens(name, frames, height, width), on, gpus, own, inside),
        asked=(network, _tokens(name, frames, height, width), on, gpus, own),
        samples=batch * each / own * scale,
        passes=passes * steps,
        decoded=batch * frames * height * width * (FLAT if frames == 1 else 1.0),
    )


def assumed_of(row: dict[str, str]) -> list[str]:
    """What a row of images or videos does not state."""
    name, sort = row["model"].rpartition("/")[2].lower(), "video" if row.get("num_frames") else "image"
    passes, each = next((found for family, found in GUIDANCE.items() if name.startswith(family)), APART)
    gpus, like = max(int(number(row, "num_gpus")), 1), _network(row["model"], sort, number(row, "total_params_b", 0))
    said = [
        f"system {SYSTEMS[row['gpu']]} for the GPU {row['gpu']}",
        f"stack {STACK}",
        "precision bf16",
        f"guidance: {passes} passes of a step, {each} samples of a pass for each {sort}",
        f"a token is {_side(name)} x {_side(name)} pixels" + (f" of {FRAMES} frames" if sort == "video" else ""),
        "text encoders are left out",
    ]
    convolved = any(stream.side for stream in open_model(like[0]).streams)
    layouts = "the mean of the layouts over GPUs that the model allows (Ulysses, ring, Ulysses inside of a ring)"
    part = "an even part of one GPU's work on each: the model has convolutions"
    said += [part if convolved else layouts] if gpus > 1 else []
    said += [f"shape of {like[0]} with {like[1]:.2f} times its layers"] if like[1] != 1.0 else []
    return said


def _network(name: str, sort: str, billions: float) -> tuple[str, float]:
    """Name of a catalogue model, and the ratio of layers."""
    try:
        known = open_model(name)
        if known.family is Family.COMPOSED:
            return name, 1.0
    except UsageError:
        if not billions:
            raise
    if not billions:
        raise UsageError(f"`{name}` does not generate images", hint="the column total_params_b")
    like, own = LIKE[sort]
    return like, billions / own


def _tokens(name: str, frames: int, height: int, width: int) -> int:
    coded = (frames - 1) // FRAMES + 1
    coded = -(-coded // 2) if name.startswith(PAIRED) else coded
    side = _side(name)
    return coded * (height // side) * (width // side)


def _side(name: str) -> int:
    """Pixels of a token each way."""
    return 2 * PATCH if name.startswith(COARSE) else PATCH


@cache
def _layouts(model: str, tokens: int, on: SystemKey, gpus: int, batch: int, inside: bool) -> tuple[DenoisingTimes, ...]:
    """One for each possible split of tokens."""
    alone = denoising_work(denoising_passes(model, tokens, on, 1, batch)[0], on.system)[0]
    if gpus == 1:
        return (alone,)
    if any(stream.side for stream in open_model(model).streams):
        return (_shared(alone, gpus),)
    whole = [denoising_work(one, on.system)[0] for one in denoising_passes(model, tokens, on, gpus, batch)]
    inner = [by_heads for by_heads in range(2, gpus) if inside and gpus % by_heads == 0]
    mixed = [_mixed(model, tokens, on, (by_heads, gpus // by_heads), batch, alone) for by_heads in inner]
    return (*whole, *(one for one in mixed if one is not None))


def _shared(alone: DenoisingTimes, gpus: int) -> DenoisingTimes:
    """An even part of the work of one GPU: of a picture that is convolved each has some rows, with all keys. What they
    send is left out."""
    return replace(
        alone, products=alone.products / gpus, attention=alone.attention / gpus, rest=alone.rest / gpus, network=0.0
    )


def _mixed(
    model: str, tokens: int, on: SystemKey, split: tuple[int, int], batch: int, alone: DenoisingTimes
) -> DenoisingTimes | None:
    """Tokens are split by heads inside of each part of a ring; None where heads do not divide. A GPU has the tokens,
    and sends what they send, of a Ulysses group with one part of all; it attends to as many keys as there are parts.
    What goes around the ring meanwhile is hidden by attention, and its operations are those of such a ring."""
    by_heads, around = split
    part = -(-tokens // around)
    inside = [one for one in denoising_passes(model, part, on, by_heads, batch) if one.generated.plan.cp_kind != RING]
    rings = [one for one in denoising_passes(model, tokens, on, around, batch) if one.generated.plan.cp_kind == RING]
    if not inside or not rings:
        return None
    group, ring = (denoising_work(one, on.system)[0] for one in (inside[0], rings[0]))
    return replace(
        group,
        attention=alone.attention / (by_heads * around),
        operations=group.operations + ring.operations - alone.operations,
        exchanges=group.exchanges + ring.exchanges,
    )


def denoising_passes(model: str, tokens: int, on: SystemKey, gpus: int, batch: int) -> tuple[Prediction, ...]:
    """A pass of the network for each possible split of tokens: heads or tokens may not divide."""
    network, system = open_model(model), on.system
    if gpus == 1:
        alone = Plan(gpus=1, seq=tokens, micro_batch=batch, train="forward")
        return (predict(network, alone, system, check=False),)
    streams = [replace(s, tokens=_even(s.tokens, gpus)) if s.tokens > 1 else s for s in network.streams]
    network = replace(network, streams=tuple(streams), blocks=tuple(_padded(one, gpus) for one in network.blocks))
    found, problem = [], None
    asked = {"gpus": gpus, "cp": gpus, "seq": _even(tokens, gpus), "micro_batch": batch, "train": "forward"}
    for kind in ("ulysses", RING):
        try:
            found.append(predict(network, Plan.from_dict({**asked, "cp_kind": kind}, model), system, check=False))
        except EtudeError as why:
            problem = why
    if not found and problem is not None:
        raise problem
    return tuple(found)


def _padded(piece: Any, gpus: int) -> Any:
    """Texts that are put together inside of the network take as many tokens as all GPUs can share."""
    parts = [
        replace(one, count=_even(one.count, gpus)) if str(one.part) == JOINED and one.count > 1 else one
        for one in piece.parts
    ]
    return replace(piece, parts=tuple(parts))


def _even(tokens: int, gpus: int) -> int:
    """Padded so that all GPUs have equally many."""
    return -(-tokens // gpus) * gpus


class NodeWork(NamedTuple):
    """Times of the nodes of a pass, ns; each node has one of them."""

    products: F64
    attention: F64
    rest: F64
    network: F64


def denoising_work(found: Prediction, system: System) -> tuple[DenoisingTimes, NodeWork]:
    """The work of a pass, in all and node by node."""
    part, plan = found.simulated.part(0), found.generated.plan
    time_ns = np.where(part.timed, part.end_ns - part.start_ns, 0).astype(np.float64)
    ops, computes = ops_of(part.trace), part.trace.kind == int(Kind.COMP)
    product = computes & np.isin(ops.op_class, (OpClass.GEMM, OpClass.CONVOLUTION))
    attention = computes & (ops.op_class == OpClass.ATTENTION)
    ring = plan.cp_kind == RING and plan.cp > 1
    moved = np.zeros(len(part.trace))
    if any(one.rotary for block in found.generated.model.blocks for one in block.parts):
        turned = attention & (ops.m == ops.n)  # not cross-attention to the text
        moved[turned] = ROTARY * (ops.m * ops.k * ops.batch)[turned]
    parts = plan.cp if ring else 1
    codes, words = part.trace.coded("module")
    cross = np.array([word.endswith(CROSS) for word in words] + [False])[codes]
    again = (cross & attention).sum() * (plan.cp - 1) // plan.cp if ring else 0
    sent = ~computes & ~cross
    others, peak = computes & ~product & ~attention, system.device.peak_flop_per_s["bf16"]
    turning_ns = 1e9 / system.device.memory_bandwidth_bytes_per_s
    nodes = NodeWork(
        products=np.where(product, time_ns, 0.0),
        attention=np.where(attention, ops.flops, 0) / peak * 1e9,
        rest=np.where(others, time_ns, 0.0) + moved / parts * turning_ns,
        network=np.where(sent, time_ns, 0.0),
    )
    whole = DenoisingTimes(
        products=float(time_ns[product].sum()),
        attention=float(ops.flops[attention].sum()) / peak * 1e9,
        rest=float(time_ns[others].sum())
        + float(moved.sum()) / parts / system.device.memory_bandwidth_bytes_per_s * 1e9,
        network=float(time_ns[sent].sum()),
        operations=int(computes.sum() - again),
        exchanges=int(sent.sum()),
        hidden=ring,
    )
    return whole, nodes
