"""Tokens a second of one sequence on a device with room for a part of the model: the rest is read from the host.

    tokens_by_room(parts_of(open_model("llama3-8b"), 4096), open_device("rtx5090"), open_device("desktop"), [8e9])

What is read most for each byte held is in the device (`etude.cost.tiers.placing`). Nothing but reads takes time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etude.base.errors import ClusterError, UsageError
from etude.cost.contention.launches import memory_rate
from etude.cost.tiers.placing import StoredPart, place
from etude.machine.system import Device
from etude.make.generate import Plan, generate
from etude.make.generate.model import Mixer, Model


def parts_of(model: Model, context: int, bits: float = 16.0) -> list[StoredPart]:
    """Weights, experts, and keys and values (in 16 bits) of one sequence of this many tokens; `bits` of a weight."""
    if context < 1 or not 1 <= bits <= 32:
        raise UsageError(f"a context of {context} tokens, {bits:g} bits per weight", hint="--context 4096 --bits 4.5")
    weights = float(generate(model, Plan(gpus=1, global_batch=1, seq=1)).params)
    routed = sum(model.has_experts(i) for i in range(model.layers)) if model.experts else 0
    wide = model.hidden * (model.expert_ffn or model.ffn)
    experts = float(routed * model.experts * (3 if model.gated else 2) * wide)
    layers = sum(model.mixer_of(i) == Mixer.ATTENTION for i in range(model.layers))
    numbers = model.kv_rank + model.rope_size if model.kv_rank else 2 * model.kv * model.head
    return [
        StoredPart(name="weights", size_bytes=(weights - experts) * bits / 8),
        StoredPart(
            name="experts", size_bytes=experts * bits / 8, use=model.top_k / model.experts if model.experts else 0.0
        ),
        StoredPart(name="kv", size_bytes=2.0 * layers * numbers * context),
    ]


def tokens_by_room(
    parts: Sequence[StoredPart], device: Device, host: Device, rooms: Sequence[float], buffers_bytes: float = 0.5e9
) -> list[dict[str, Any]]:
    """One entry for each room. Reads from the host are split over its own cores and the link of the device."""
    if device.host_link is None:
        raise ClusterError(
            f"device `{device.name}` does not specify its link to the host", hint="`host_link` in its file"
        )
    far = (1e9 * memory_rate(host), device.host_link.read_bytes_per_s)
    found = []
    for room in rooms:
        placed = place(parts, room, buffers_bytes)
        took = placed.token_ns(1e9 * memory_rate(device), far)
        found.append(
            {
                "room_bytes": round(room),
                "tokens_per_s": 1e9 / took,
                "near_read_bytes": round(placed.near_read_bytes),
                "far_read_bytes": round(placed.far_read_bytes),
                "resident_bytes": {name: round(size) for name, size in placed.resident_bytes.items()},
            }
        )
    return found
