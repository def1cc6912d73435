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
from typing import Any

from etude.base.errors import UsageError
from etude.base.figures import figure, read, usage_errors
from etude.decide.search.cut_space import CUT_METHODS, CutSpace
from etude.decide.search.cuts import SCORES, Chain, chain_of
from etude.decide.search.found import Found
from etude.decide.search.given import Given, SearchRequest
from etude.decide.search.inferences import searched_again
from etude.decide.search.layers import Layers, given_layers, model_layers
from etude.decide.search.links import read_links
from etude.decide.search.solver import search_space
from etude.machine import Device, open_system


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
    method = asked.one_of(*CUT_METHODS)
    with usage_errors():
        space = read(ChainSpace, given.keys, given.where)
    if space.score not in SCORES:
        raise UsageError(f"unknown score `{space.score}`", where=given.where, hint=f"known: {', '.join(SCORES)}")
    chain = _chain(given, space, asked.seed)
    if asked.again_s < 0:
        raise UsageError("the interval must be positive", where="--again", hint="--again every=10s")
    cuts = CutSpace(chain, [link.at(0) for link in chain.links], space.score, space.limits.deadline_ns, given.where)
    if asked.again_s:
        return searched_again(cuts, method, round(asked.again_s * 1e9), (space.duration_ns, space.every_ns))
    return search_space(cuts, asked)


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
