"""A chain of layers cut over devices in order: edge, fog, cloud.

search: chain
model: vgg16                       # or layers: [{flops: 1G, out: 100kB}, ...] with input: 600kB
dtype: fp32
devices: [raspberry-pi5, laptop.yaml, desktop]
links: [{rate: 100Mb/s, latency: 2ms}, {rates: wan.csv, latency: 20ms}]
score: latency                     # energy; bottleneck: interval of results if inferences follow one another
limits: {memory: true, deadline: 200ms}
duration: 10min                    # with --again every=10s: inferences one after another, one begins every `every`
every: 1s
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import figure, read, usage_errors
from etude.decide.search.cuts import SCORES, Chain, all_cuts, best_cut, chain_of, no_cut, row_of
from etude.decide.search.found import Found, frontier
from etude.decide.search.given import Given, SearchRequest
from etude.decide.search.inferences import searched_again
from etude.decide.search.layers import Layers, given_layers, model_layers
from etude.decide.search.links import NEVER, read_links
from etude.machine import Device, open_system

ROWS: Final = 1000
"""Most rows of all cuts that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    memory: bool = figure("flag", "layers and activations fit in the memory of their device", True)
    deadline_ns: int = figure("time", "deadline of an inference", 0, zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSpace:
    model: str = figure("text", "name or file", "")
    layers: Any = figure("one", "layers by hand", None)
    input_bytes: int = figure("bytes", "input of the first of these", 0, zero=True)
    dtype: str = figure("text", "data type of weights and activations", "fp32")
    batch: int = figure("count", "samples of an inference", 1)
    seq: int = figure("count", "tokens of a sample; 0: the model's", 0, zero=True)
    devices: Any = figure("one", "devices in order: names, files, or keys of a device")
    links: Any = figure("one", "links between neighbouring devices")
    score: str = figure("text", "latency, energy, bottleneck", "latency")
    limits: Limits = figure("one", "limits of a cut", Limits(), of=Limits)
    duration_ns: int = figure("time", "with --again", 600_000_000_000)
    every_ns: int = figure("time", "time from one inference to the next", 1_000_000_000)


def solve(given: Given, asked: SearchRequest) -> Found:
    method = asked.one_of("dp", "all")
    with usage_errors():
        space = read(ChainSpace, given.keys, given.where)
    if space.score not in SCORES:
        raise UsageError(f"unknown score `{space.score}`", where=given.where, hint=f"known: {', '.join(SCORES)}")
    chain = _chain(given, space, asked.seed)
    if asked.again_s < 0:
        raise UsageError("the interval must be positive", where="--again", hint="--again every=10s")
    if asked.again_s:
        return searched_again(chain, space.score, space.limits.deadline_ns, method, asked.again_s,
                              (space.duration_ns, space.every_ns), given.where)  # fmt: skip
    rates = [link.at(0) for link in chain.links]
    return (_by_all if method == "all" else _by_program)(chain, space, rates, given.where)


def _chain(given: Given, space: ChainSpace, seed: int) -> Chain:
    if not isinstance(space.devices, list) or not space.devices:
        raise UsageError("`devices` is a list", where=given.where, hint="devices: [raspberry-pi5, desktop]")
    devices = [device_of(given, one, f"{given.where}: devices[{i}]") for i, one in enumerate(space.devices)]
    links = read_links(given, space.links, len(devices) - 1, space.duration_ns, seed)
    memory = [device.memory_bytes if space.limits.memory else 0 for device in devices]
    return chain_of(_layers(given, space), devices, links, memory)


def _layers(given: Given, space: ChainSpace) -> Layers:
    if bool(space.model) == (space.layers is not None):
        raise UsageError("either `model` or `layers` is needed", where=given.where, hint="model: vgg16")
    if space.model:
        beside = given.folder / space.model
        return model_layers(
            str(beside) if beside.is_file() else space.model, space.dtype, batch=space.batch, seq=space.seq
        )
    return given_layers(space.layers, space.input_bytes, space.dtype, f"{given.where}: layers")


def device_of(given: Given, one: Any, where: str) -> Device:
    """A device of the catalogue, of one of its systems, of a file, or given by its own keys."""
    if isinstance(one, Mapping):
        return Device.from_dict(one, where)
    beside = given.folder / str(one)
    return open_system(beside if beside.is_file() else str(one)).device


def _by_program(chain: Chain, space: ChainSpace, rates: list[int], where: str) -> Found:
    cut = best_cut(chain, rates, space.score, space.limits.deadline_ns)
    if cut is None:
        raise no_cut(where)
    row = row_of(chain, cut, chain.score(cut, rates))
    big = chain.space - chain.fitting()
    pruned = {"too large for the memory": big, "not better than the best bound": chain.space - big - 1}
    return Found(
        best=row,
        frontier=[row],
        tried=1,
        pruned={k: v for k, v in pruned.items() if v},
        space=chain.space,
        rows=[row],
        more=_more(chain),
    )


def _by_all(chain: Chain, space: ChainSpace, rates: list[int], where: str) -> Found:
    rows, late = [], 0
    for cut in all_cuts(chain):
        score = chain.score(cut, rates)
        if score.latency_ns >= NEVER or (space.limits.deadline_ns and score.latency_ns > space.limits.deadline_ns):
            late += 1
        else:
            rows.append((score.of(space.score), cut, score))
    if not rows:
        raise no_cut(where)
    rows.sort(key=lambda row: row[:2])
    shown = [row_of(chain, cut, score) for _, cut, score in rows]
    pruned = {"too large for the memory": chain.space - len(rows) - late, "late": late}
    return Found(
        best=shown[0],
        frontier=frontier(shown, {"latency_ms": 1, "energy_j": 1}),
        tried=len(rows),
        pruned={k: v for k, v in pruned.items() if v},
        space=chain.space,
        rows=shown[:ROWS],
        more=_more(chain),
    )


def _more(chain: Chain) -> dict[str, Any]:
    layers = chain.layers
    return {"layers": [
        {"name": name, "flops": int(layers.flops[i]), "weight_bytes": int(layers.weight_bytes[i]),
         "in_bytes": int(layers.in_bytes[i]), "out_bytes": int(layers.out_bytes[i]),
         "time_ms": [float(chain.ends_ns[d, i + 1] - chain.ends_ns[d, i]) / 1e6 for d in range(len(chain.devices))]}
        for i, name in enumerate(layers.name)
    ]}  # fmt: skip
