"""The graph of each parallelism of ASTRA-sim's text workloads.

Node for node, edge for edge and in the same order what Chakra's own converter writes, for the kinds that it has; where
it makes an all-reduce of nothing of a collective NONE, so does this. The other kinds follow the workload loop of
ASTRA-sim 1.0; there NONE is no node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from etude.capture.ingest.text_layers import Comm, Header, Layer
from etude.model.build import TraceBuilder
from etude.model.schema import UNKNOWN, Collective, Kind

Graph = Callable[[TraceBuilder, Header, list[Layer], int], None]
NONE: Final = -1
"""Row of a node that is not there."""


def _compute(b: TraceBuilder, layer: Layer, part: str, time_ns: int, *after: int) -> int:
    duration_ns = time_ns or UNKNOWN
    deps = [row for row in after if row != NONE]
    return b.add(Kind.COMP, f"COMP_NODE_{layer.name}_{part}", data=deps, duration_ns=duration_ns)


def _communicate(b: TraceBuilder, name: str, comm: Comm, after: int, group: str | None = None) -> int:
    # as the official converter, which takes every word that it does not know for an all-reduce, NONE too
    collective = comm.collective or Collective.ALL_REDUCE
    return b.add(
        Kind.COLL,
        f"COMM_COLL_NODE_{name}_{comm.word}",
        data=[after],
        collective=collective,
        in_bytes=comm.size_bytes,
        group=group,
    )


# -- what Chakra's own converter has -----------------------------------------------------------------------------------


def _micro(b: TraceBuilder, header: Header, layers: list[Layer], passes: int) -> None:
    """The weight gradients' collectives, all at once."""
    for _ in range(passes):
        for layer in layers:
            comm = layer.weight_gradient
            collective = comm.collective or Collective.ALL_REDUCE
            name = f"COMM_COLL_NODE_{layer.name}_{comm.word}"
            b.add(Kind.COLL, name, collective=collective, in_bytes=comm.size_bytes)


def _data(b: TraceBuilder, header: Header, layers: list[Layer], passes: int) -> None:
    """Gradients are reduced during the backward pass; the next pass of a layer waits for its own."""
    reduced = [NONE] * len(layers)
    for _ in range(passes):
        last = NONE
        for i, layer in enumerate(layers):
            last = _compute(b, layer, "FWD", layer.forward.time_ns, last, reduced[i])
        for i in reversed(range(len(layers))):
            layer = layers[i]
            weights = _compute(b, layer, "BWD_WG", layer.weight_gradient.time_ns, last)
            reduced[i] = _communicate(b, layer.name, layer.weight_gradient, weights)
            if i:
                last = _compute(b, layer, "BWD_IG", layer.input_gradient.time_ns, weights)


def _model(b: TraceBuilder, header: Header, layers: list[Layer], passes: int) -> None:
    """Activations are exchanged after every layer, in both directions; weights stay in place."""
    weights = [NONE] * len(layers)
    for _ in range(passes):
        sent = NONE
        for i, layer in enumerate(layers):
            forward = _compute(b, layer, "FWD", layer.forward.time_ns, sent, weights[i])
            sent = _communicate(b, layer.name, layer.forward, forward)
        below = NONE
        for i in reversed(range(len(layers))):
            layer = layers[i]
            inputs = _compute(b, layer, "BWD_IG", layer.input_gradient.time_ns, below, sent)
            if i:
                sent = _communicate(b, layer.name, layer.input_gradient, inputs)
            below = weights[i] = _compute(b, layer, "BWD_WG", layer.weight_gradient.time_ns, inputs)


def _hybrid(suffix: str) -> Graph:
    """Both: activations in one dimension, gradients in the other. `suffix` marks the input gradients' collectives."""

    def graph(b: TraceBuilder, header: Header, layers: list[Layer], passes: int) -> None:
        reduced = [NONE] * len(layers)
        for _ in range(passes):
            sent = NONE
            for i, layer in enumerate(layers):
                forward = _compute(b, layer, "FWD", layer.forward.time_ns, reduced[i], sent)
                sent = _communicate(b, layer.name, layer.forward, forward)
            below = NONE
            for i in reversed(range(len(layers))):
                layer = layers[i]
                inputs = _compute(b, layer, "BWD_IG", layer.input_gradient.time_ns, below, sent)
                if i:
                    sent = _communicate(b, layer.name + suffix, layer.input_gradient, inputs)
                below = _compute(b, layer, "BWD_WG", layer.weight_gradient.time_ns, inputs)
                reduced[i] = _communicate(b, layer.name, layer.weight_gradient, below)

    return graph


def _dlrm(b: TraceBuilder, header: Header, layers: list[Layer], passes: int) -> None:
    """Embeddings (layer 0) are exchanged while the bottom layers run, their gradients likewise in the backward pass."""
    bottom = header.last_bottom or 0
    done = [NONE] * len(layers)
    for _ in range(passes):
        last = exchanged = NONE
        for i, layer in enumerate(layers):
            waits = exchanged if i == bottom else NONE
            last = _compute(b, layer, "FWD", layer.forward.time_ns, done[i], last, waits)
            if layer.forward.collective == Collective.ALL_TO_ALL:
                sent = _communicate(b, layer.name, layer.forward, last)
                exchanged = sent if i == 0 else exchanged
        returned = NONE
        for i in reversed(range(len(layers))):
            layer = layers[i]
            waits = returned if i == 0 else NONE
            done[i] = weights = _compute(b, layer, "BWD_WG", layer.weight_gradient.time_ns, last, waits)
            if layer.weight_gradient.collective != Collective.NONE:
                done[i] = _communicate(b, layer.name, layer.weight_gradient, weights)
            if i:
                last = _compute(b, layer, "BWD_IG", layer.input_gradient.time_ns, weights)
            if i and i == bottom + 1:
                returned = _communicate(b, layers[0].name, layers[0].input_gradient, last)


# -- what only ASTRA-sim itself has ------------------------------------------------------------------------------------


def _after(b: TraceBuilder, layer: Layer, comm: Comm, compute: int, group: str | None) -> int:
    """What the next node waits for: the collective, if there is one."""
    if comm.collective == Collective.NONE:
        return compute
    return _communicate(b, layer.name, comm, compute, group)


def _transformer(b: TraceBuilder, header: Header, layers: list[Layer], passes: int) -> None:
    """Activations within model-parallel groups, gradients across them; layers that recompute run forward again."""
    model, data = ("model", "data") if header.model_parallel else (None, None)
    done = [NONE] * len(layers)
    for _ in range(passes):
        last = NONE
        for i, layer in enumerate(layers):
            forward = _compute(b, layer, "FWD", layer.forward.time_ns, last, done[i])
            last = _after(b, layer, layer.forward, forward, model)
        below = NONE
        for i in reversed(range(len(layers))):
            layer = layers[i]
            for again in _recomputed(header, i):
                forward = _compute(b, layers[again], "FWD_IN_BWD", layers[again].forward.time_ns, below, last)
                last, below = _after(b, layers[again], layers[again].forward, forward, model), NONE
            inputs = _compute(b, layer, "BWD_IG", layer.input_gradient.time_ns, below, last)
            sends = i and layer.input_gradient.collective
            last = _communicate(b, layer.name, layer.input_gradient, inputs, model) if sends else NONE
            below = _compute(b, layer, "BWD_WG", layer.weight_gradient.time_ns, inputs)
            done[i] = _after(b, layer, layer.weight_gradient, below, data)


def _recomputed(header: Header, layer: int) -> range:
    """From the last checkpoint before a layer that recomputes up to the layer itself."""
    if layer not in header.recomputing:
        return range(0)
    return range(max(c for c in header.checkpoints if c < layer), layer)


def _customized(b: TraceBuilder, header: Header, layers: list[Layer], passes: int) -> None:
    """Every layer by its own parallelism: a data parallel one exchanges gradients only, a model parallel one none."""
    done = [NONE] * len(layers)
    for _ in range(passes):
        last = NONE
        for i, layer in enumerate(layers):
            forward = _compute(b, layer, "FWD", layer.forward.time_ns, last, done[i])
            last = forward if layer.policy == "DATA" else _after(b, layer, layer.forward, forward, None)
        below = NONE
        for i in reversed(range(len(layers))):
            layer = layers[i]
            inputs = _compute(b, layer, "BWD_IG", layer.input_gradient.time_ns, below, last)
            sends = i and layer.policy != "DATA" and layer.input_gradient.collective
            last = _communicate(b, layer.name, layer.input_gradient, inputs) if sends else NONE
            below = done[i] = _compute(b, layer, "BWD_WG", layer.weight_gradient.time_ns, inputs)
            if layer.policy != "MODEL":
                done[i] = _after(b, layer, layer.weight_gradient, below, None)


def _inference(b: TraceBuilder, header: Header, layers: list[Layer], passes: int) -> None:
    """Forward only, each layer after the exchange of the one before."""
    last = NONE
    for _ in range(passes):
        for layer in layers:
            forward = _compute(b, layer, "FWD", layer.forward.time_ns, last)
            last = _after(b, layer, layer.forward, forward, None)


GRAPHS: Final[dict[str, Graph]] = {
    "MICRO": _micro,
    "DATA": _data,
    "MODEL": _model,
    "HYBRID_DATA_MODEL": _hybrid("_IG_COMM_"),
    "HYBRID_MODEL_DATA": _hybrid(""),
    "HYBRID_DLRM": _dlrm,
    "HYBRID_DLRM_ENHANCED": _dlrm,
    "HYBRID_TRANSFORMER": _transformer,
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD": _transformer,
    "HYBRID_CUSTOMIZED": _customized,
    "DISTRIBUTED_INFERENCE": _inference,
}
