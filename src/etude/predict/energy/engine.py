"""What an engine adds to the passes that it runs, by device: factors on kernels, time between passes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from etude.config import figure, parse, read
from etude.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Factors on the times of the catalogue, and what a pass takes beyond them."""

    kernels: float = figure("number", "on compute", 1.0)
    quantised: float = figure("number", "on products of experts whose weights are scaled in blocks", 1.0)
    network: float = figure("number", "on collectives", 1.0)
    pass_ns: float = figure("time", "of a pass, whatever its size", 0.0, zero=True)
    sequence_ns: float = figure("time", "of a pass for each sequence in it", 0.0, zero=True)
    prompt: float = figure("number", "on prompts, which are read between tokens", 1.0)


@cache
def _known() -> dict[str, dict[str, Engine]]:
    given = parse(files("etude.predict.energy").joinpath("engines.yaml").read_text("utf-8"), "engines.yaml")
    return {
        name: {device: read(Engine, about, f"engines.yaml: {name}: {device}") for device, about in by_device.items()}
        for name, by_device in given.items()
    }


def open_engine(name: str, device: str) -> Engine:
    """The engine on a device (`h100`); on one that it was not fitted on as on the first."""
    if name not in _known():
        raise UsageError(f"unknown engine `{name}`", hint=f"known: {', '.join(_known())}")
    by_device = _known()[name]
    return by_device.get(device.lower()) or next(iter(by_device.values()))
