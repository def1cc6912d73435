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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.base.figures import figure, read, text, usage_errors
from etude.decide.search.cuts import Chain, Cut, best_cut, chain_of, row_of
from etude.decide.search.found import Found, Row
from etude.decide.search.inferences import searched_again
from etude.decide.search.layers import Layers, given_layers, model_layers
from etude.decide.search.links import NEVER, read_links
from etude.decide.search.request import SearchRequest, SpaceFile, known_word
from etude.decide.search.solver import Answer, CandidateSpace, Trials, every
from etude.machine import Device, open_system

ROWS: Final = 1000
"""Most rows of all cuts that are kept."""
LARGE: Final = "too large for the memory"
LATE: Final = "late"
COLUMNS: Final = {"latency": "latency_ms", "energy": "energy_j", "bottleneck": "bottleneck_ms"}
"""Score -> its column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    memory: bool = figure("flag", "layers and activations fit in the memory of their device", True)
    deadline_ns: int = figure("time", "deadline of an inference", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSpace:
    model: str = text("name or file")
    layers: Any = figure("one", "layers by hand", None)
    input_bytes: int = figure("bytes", "input of the first of these", 0)
    dtype: str = figure("text", "data type of weights and activations", "fp32")
    batch: int = figure("count", "samples of an inference", 1)
    seq: int = figure("count", "tokens of a sample; 0: the model's", 0)
    devices: Any = figure("one", "devices in order: names, files, or keys of a device")
    links: Any = figure("one", "links between neighbouring devices")
    score: str = figure("text", "latency, energy, bottleneck", "latency")
    limits: Limits = figure("one", "limits of a cut", Limits(), of=Limits)
    duration_ns: int = figure("time", "with --again", 600_000_000_000)
    every_ns: int = figure("time", "time from one inference to the next", 1_000_000_000)


def space(given: SpaceFile, asked: SearchRequest) -> CutSpace:
    with usage_errors():
        read_space = read(ChainSpace, given.keys, given.where)
    known_word("score", read_space.score, COLUMNS, given.where)
    chain = _chain(given, read_space, asked.seed)
    if asked.again_s < 0:
        raise UsageError("the interval must be positive", where="--again", hint="--again every=10s")
    return CutSpace(chain, [link.at(0) for link in chain.links], read_space, given.where, asked.again_s)


def options(keys: Mapping[str, Any], method: str) -> frozenset[str]:
    links = keys.get("links")
    drawn = isinstance(links, list) and any(
        isinstance(one, Mapping) and isinstance(one.get("rates"), Mapping) for one in links
    )
    return frozenset({"again", "seed"} if drawn else {"again"})


class CutSpace(CandidateSpace[Cut]):
    rest = LARGE

    def __init__(self, chain: Chain, rates: Sequence[int], asked: ChainSpace, where: str, again_s: float = 0.0) -> None:
        self.chain, self.rates, self.asked, self.where, self.again_s = chain, rates, asked, where, again_s
        self.size, self.scores = chain.space, {"latency_ms": 1, "energy_j": 1}
        self.methods = {"dp": dynamic_program, "all": every}
        self.deadline_ns = asked.limits.deadline_ns

    def candidates(self) -> Iterator[Cut]:
        """Every cut that fits in the memories."""
        chain = self.chain
        for cut in combinations_with_replacement(range(len(chain.layers) + 1), len(chain.links)):
            if all(chain.fits[d, a, b] for d, (a, b) in enumerate(chain.stages(cut))):
                yield cut

    def rows(self, some: Sequence[Cut], limit: float) -> list[Answer]:
        return [self.row(cut) for cut in some]

    def row(self, cut: Cut) -> Answer:
        score = self.chain.score(cut, self.rates)
        is_late = score.latency_ns >= NEVER or (self.deadline_ns and score.latency_ns > self.deadline_ns)
        return LATE if is_late else row_of(self.chain, cut, score)

    def rank(self, row: Row) -> tuple[float, ...]:
        return (row[COLUMNS[self.asked.score]],)

    def found(self, trials: Trials[Cut]) -> Found:
        if not trials.rows:
            raise self.nothing()
        if self.again_s:
            times_ns = round(self.again_s * 1e9), self.asked.duration_ns, self.asked.every_ns
            return searched_again(self.chain, partial(self.best_at, trials.method), times_ns, self.where)
        rows, layers, ends_ns = [row for _, row in trials.ranked()][:ROWS], self.chain.layers, self.chain.ends_ns
        told: list[dict[str, Any]] = [
            {"name": name, "flops": int(layers.flops[i]), "weight_bytes": int(layers.weight_bytes[i]),
             "in_bytes": int(layers.in_bytes[i]), "out_bytes": int(layers.out_bytes[i]),
             "time_ms": [float(ends[i + 1] - ends[i]) / 1e6 for ends in ends_ns]}
            for i, name in enumerate(layers.name)
        ]  # fmt: skip
        return trials.found(rows=rows, more={"layers": told})

    def best_at(self, method: str, rates: Sequence[int]) -> Cut | None:
        """The best cut with other rates."""
        there = Trials(CutSpace(self.chain, rates, self.asked, self.where))
        self.methods[method](there, np.random.default_rng(0))
        return there.ranked()[0][0] if there.rows else None

    def nothing(self) -> UsageError:
        hint = "limits: {memory: false}, or a later deadline"
        return UsageError("no cut is within the limits", where=self.where, hint=hint)


def dynamic_program(trials: Trials[Cut], draw: np.random.Generator) -> None:
    """The best cut alone: exact, without looking at the others."""
    space = trials.space
    assert isinstance(space, CutSpace)
    space.left_out = {LARGE: space.size - space.chain.fitting()}
    space.rest = "not better than the best bound"
    cut = best_cut(space.chain, space.rates, space.asked.score, space.deadline_ns)
    trials.ask([] if cut is None else [cut])


def _chain(given: SpaceFile, space: ChainSpace, seed: int) -> Chain:
    if not isinstance(space.devices, list) or not space.devices:
        raise UsageError("`devices` is a list", where=given.where, hint="devices: [raspberry-pi5, desktop]")
    devices = [device_of(given, one, f"{given.where}: devices[{i}]") for i, one in enumerate(space.devices)]
    links = read_links(given, space.links, len(devices) - 1, space.duration_ns, seed)
    memory = [device.memory_bytes if space.limits.memory else 0 for device in devices]
    return chain_of(_layers(given, space), devices, links, memory)


def _layers(given: SpaceFile, space: ChainSpace) -> Layers:
    if bool(space.model) == (space.layers is not None):
        raise UsageError("either `model` or `layers` is needed", where=given.where, hint="model: vgg16")
    if space.model:
        return model_layers(given.file_or_name(space.model), space.dtype, batch=space.batch, seq=space.seq)
    return given_layers(space.layers, space.input_bytes, space.dtype, f"{given.where}: layers")


def device_of(given: SpaceFile, one: Any, where: str) -> Device:
    """A device of the catalogue, of one of its systems, of a file, or given by its own keys."""
    if isinstance(one, Mapping):
        return Device.from_dict(one, where)
    return open_system(given.file_or_name(str(one))).device
