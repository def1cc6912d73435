"""What is asked of the catalogue of systems, and the device that verbs are about."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure
from etude.base.outputs import Catalogued, entry_name

if TYPE_CHECKING:
    from etude.machine.system import System


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """The parameter of what is about one device."""

    device: str = figure(
        "text", "device: a name in the catalogue, or your own", "h200", names=("-d",), metavar="NAME", like="h100"
    )


@dataclass(frozen=True, kw_only=True)
class Systems(Catalogued):
    """The catalogue of systems: list, show one, check your own file

    etude systems
    etude systems show dgx-h100
    """


@dataclass(frozen=True, kw_only=True)
class ListSystems(Catalogued):
    """The systems of the catalogue: devices, memory, links

    etude systems list
    """


@dataclass(frozen=True, kw_only=True)
class ShowSystem(Catalogued):
    """Every figure of one system, with its source, as YAML that can be changed and used

    etude systems show dgx-h100
    """

    name: str = entry_name("dgx-a100")


@dataclass(frozen=True, kw_only=True)
class CheckSystem:
    """Is a system file sound? Names the key that is wrong; exit code 2 if one is

    etude systems check mine.yaml
    """

    path: str = argument("path", "YAML, or an InfraGraph", like="other.yaml")


def systems_listed(_: None) -> list[dict[str, Any]]:
    from etude.machine import open_system, system_names

    return [_row(name, open_system(name)) for name in system_names()]


def _row(name: str, system: "System") -> dict[str, Any]:
    from etude.base.units import format_bandwidth, format_bytes

    levels = ", ".join(
        f"{level.kind} of {level.size} at {format_bandwidth(int(level.bandwidth_bytes_per_s))}"
        for level in system.levels
    )
    return {
        "system": name,
        "device": system.device.name,
        "devices": len(system),
        "memory": format_bytes(system.device.memory_bytes),
        "memory bandwidth": format_bandwidth(int(system.device.memory_bandwidth_bytes_per_s)),
        "levels, innermost first": levels,
    }


def system_figures(name: str) -> dict[str, Any]:
    from etude.machine import open_system

    return dict(open_system(name).to_dict())


def system_checked(path: Path) -> list[str]:
    """What is found of a sound file, in lines."""
    from etude.base.units import format_bandwidth
    from etude.machine import open_system
    from etude.machine.dumps import sort_of

    if not path.is_file():
        raise UsageError("no such file", where=str(path))
    system = open_system(path)
    lines = [f"{path}: `{system.name}`, {len(system):,} devices, no problems found"]
    if (graph := system.topology) is None:
        return lines
    lines.append(f"a graph of {len(graph.kind):,} vertices and {len(graph.src):,} links, one for each direction")
    if sort_of(path) is not None:
        times = {name: int(graph.latency_ns[graph.link_type == k][0]) for k, name in enumerate(graph.link_names)}
        assumed = ", ".join(f"{name} {latency_ns} ns" for name, latency_ns in times.items())
        lines.append(f"latencies of links are assumed, since the file has none: {assumed}")
    if system.irregular:
        return [
            *lines,
            f"it has no levels: {system.irregular}; `--network flow` or `links` simulates it, closed forms do not",
        ]
    for level in system.levels:
        rate = format_bandwidth(int(level.bandwidth_bytes_per_s))
        lines.append(f"level `{level.name}`: {level.kind} of {level.size:,} at {rate}, {level.latency_ns:g} ns")
    return lines
