"""ServingStack: the efficiency of an engine's software on a device, as factors on the times of the catalogue and its
own time on the host. `stacks.yaml` has them by engine and device; none of its values is specific to one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from etude.base.errors import UsageError
from etude.base.figures import figure, plain, read, read_mapping, text, usage_errors
from etude.cost.stacks import Band

ANY: Final = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingStack:
    """Factors multiply the times of the catalogue."""

    products: float = figure("number", "matrix products in 16 bits or more", 1.0)
    dense: float = figure("number", "... bound by the matrix units; 0: as the others", 0.0)
    narrow: float = figure("number", "matrix products in 8 bits or fewer", 1.0)
    experts: float = figure("number", "products of experts in 16 bits or more", 1.0)
    wide_experts: float = figure("number", "... spread over ranks, and fewer on a rank than tokens", 1.0)
    narrow_experts: float = figure("number", "products of experts in 8 bits", 1.0)
    packed_experts: float = figure("number", "products of experts in 4 bits", 1.0)
    attention: float = figure("number", "attention of prompts", 1.0)
    decode_attention: float = figure("number", "attention of output tokens", 1.0)
    rest: float = figure("number", "everything else on the device", 1.0)
    casts: float = figure("number", "casts to narrow types; 0: in the kernel before", 1.0, zero=True)
    network: float = figure("number", "collectives as they are generated, by NCCL", 1.0, zero=True)
    direct: float = figure("number", "... as engines have them: ranks read one another's memory", 0.0)
    group_ns: float = figure("number", "overhead of a product of experts in 8 bits, ns", 0.0)
    word_ns: float = figure("number", "sampling a token, per word of the vocabulary, ns", 0.0)
    kernel_ns: float = figure("number", "gap between two kernels, ns", 0.0)
    pass_ns: float = figure("number", "overhead of the engine per pass, ns", 0.0)
    sequence_ns: float = figure("number", "... per sequence in it, ns", 0.0)
    schedule_ns: float = figure("number", "host's time to schedule a sequence, while the device works, ns", 0.0)
    launch_ns: float = figure("number", "host's time to launch a kernel of a pass without a graph, ns", 0.0)
    one_launch_ns: float = figure("number", "... in the one process that also schedules: replicas of one rank, ns", 0.0)
    unsure_ns: float = figure(
        "number", "length of a pass of a replica of one rank below which hosts that were measured differ, ns", 0.0
    )
    layer_floor_ns: float = figure("number", "host's time for a layer of a pass without a graph, ns", 0.0)
    mixed_floor_ns: float = figure("number", "... where prompts and tokens out share the pass, ns", 0.0)
    chain_ns: float = figure("number", "attention of the longest sequence, for a key in a layer, ns", 0.0)
    exchange_ns: float = figure("number", "host's time to send or receive between steps of a video, ns", 0.0)
    pixel_ns: float = figure("number", "decoding a pixel of a frame of a video, ns", 0.0)
    power: float = figure("number", "power above idle, relative to the device's constants", 1.0)
    graphs: bool = figure("flag", "passes are replayed from graphs of sizes that the engine has captured", True)
    prompt_graphs: bool = figure("flag", "... those with prompts too", True)
    source: str = text("source of the values")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnErrors:
    """What was left of a calibrated stack, of what it was not fitted to."""

    figures: Mapping[str, Band] = figure("map of one", "by figure: ttft_s, tpot_s, ...", of=Band)
    model: str = text("the model that was served; empty: several, or any")
    precision: str = text("its data type; empty: any")
    ranks: int = figure("count", "ranks of a replica; 0: any", 0, zero=True)


@cache
def _stacks() -> dict[str, dict[str, ServingStack]]:
    given = read_mapping(Path(__file__).parent / "stacks.yaml")
    return {
        engine: {
            device: read(ServingStack, figures, f"stacks.yaml: {engine}: {device}") for device, figures in of.items()
        }
        for engine, of in given.items()
    }


def stack_file(by_device: Mapping[str, ServingStack], own: OwnErrors | None = None) -> str:
    """The text of a file that `serving_stack` and `own_errors` read."""
    import yaml

    told = {"devices": {name: plain(one) for name, one in by_device.items()}}
    found: str = yaml.safe_dump(told if own is None else told | {"errors": plain(own)}, sort_keys=False)
    return found


def own_errors(path: str) -> OwnErrors | None:
    """Those that the file of a stack has."""
    given = read_mapping(Path(path)).get("errors")
    with usage_errors():
        return None if given is None else read(OwnErrors, given, f"{path}: errors")


def _of_file(path: str, device: str) -> ServingStack:
    given = read_mapping(Path(path)).get("devices")
    if not isinstance(given, Mapping) or not given:
        raise UsageError("is not the stack of an engine", where=path, hint="etude calibrate engine writes one")
    if device and device not in given:
        said = f"has no values for {device}"
        raise UsageError(said, where=path, hint=f"it was calibrated on {', '.join(map(str, given))}")
    with usage_errors():
        stacks = {str(name): read(ServingStack, figures, f"{path}: {name}") for name, figures in given.items()}
    return stacks[device] if device else next(iter(stacks.values()))


def serving_stack(engine: str | ServingStack, device: str) -> ServingStack:
    """The stack of an engine, by name or in a file, on a device of the catalogue; a device without its own values uses
    those of `any`."""
    if isinstance(engine, ServingStack):
        return engine
    if engine.endswith((".yaml", ".yml")):
        return _of_file(engine, device)
    known = _stacks()
    if engine not in known:
        raise UsageError(f"unknown engine `{engine}`", hint=f"known: {', '.join(known)}, or a YAML file")
    return known[engine].get(device) or known[engine].get(ANY) or ServingStack()
