"""Time of model calls on each kind of device: one pass over the prompt, then one for each further token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from etude.base.errors import UsageError
from etude.machine import open_system
from etude.make.generate.model import open_model
from etude.world.serve.deployment import NoRoomError, deployed, replica_plan
from etude.world.serve.devices.spec import Devices
from etude.world.serve.engine import Engine
from etude.world.serve.pass_time import passes_ns
from etude.world.serve.steps import StepCost


@dataclass(frozen=True, slots=True, kw_only=True)
class OnKind:
    """A model on a kind of device."""

    cost: StepCost
    weights_bytes: int
    token_bytes: int
    """Keys and values of a token."""
    _decoded: dict[tuple[int, int], int] = field(default_factory=dict)

    def call_ns(self, prompt: int, found: int, output: int) -> int:
        """Time of a call with `prompt` tokens in, of which `found` were computed before, and `output` tokens out."""
        new = prompt - found
        pairs = new * found + new * (new + 1) / 2
        first = passes_ns(self.cost, np.array([[new, pairs, 0, 0, 1, 0, 0, 1.0]]))
        if (prompt, output) not in self._decoded:
            keys = prompt + np.arange(1, output, dtype=np.float64)
            one, none = np.ones(len(keys)), np.zeros(len(keys))
            shapes = np.stack([none, none, one, keys, one, keys, none, one], axis=1)
            self._decoded[prompt, output] = int(passes_ns(self.cost, shapes).sum())
        return int(first[0]) + self._decoded[prompt, output]


Costs = dict[tuple[str, int], OnKind]
"""(model, number of the kind) -> its costs there; models that do not fit a kind are left out."""


def costs_on(devices: Devices, models: Iterable[str], *, stack: str = "vllm") -> Costs:
    found: Costs = {}
    for model in models:
        network = open_model(model)
        for k, kind in enumerate(devices.kinds):
            try:
                placed = deployed(
                    network, replica_plan(network, kind.tp), open_system(kind.system), Engine(), stack=stack
                )
            except NoRoomError:
                continue
            weights = round(placed.weights_bytes * kind.tp)
            if not kind.memory_bytes or weights <= kind.memory_bytes:
                token = round(placed.token_bytes * kind.tp)
                found[model, k] = OnKind(cost=placed.cost, weights_bytes=weights, token_bytes=token)
        if not any(key[0] == model for key in found):
            raise UsageError(
                "does not fit any device", where=model, hint="more memory, or `tp`, in the file of devices"
            )
    return found
