from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.base.errors import UsageError
from etude.base.figures import argument, part
from etude.base.outputs import Printed
from etude.base.talk import say
from etude.surface.cli.output import emit, print_yaml
from etude.surface.verb import Verb


@dataclass(frozen=True, kw_only=True)
class Systems:
    """The catalogue of systems: list, show one, check your own file

    etude systems
    etude systems show dgx-h100
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class ListSystems:
    """The systems of the catalogue: devices, memory, links

    etude systems list
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class ShowSystem:
    """Every figure of one system, with its source, as YAML that can be changed and used

    etude systems show dgx-h100
    """

    name: str = argument("text", "name in the catalogue, or a file", like="dgx-a100")
    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class CheckSystem:
    """Is a system file sound? Names the key that is wrong; exit code 2 if one is

    etude systems check mine.yaml
    """

    path: str = argument("path", "YAML, or an InfraGraph", like="other.yaml")


def listed(_: None) -> list[dict[str, Any]]:
    from etude.machine import open_system, system_names

    return [_row(name, open_system(name)) for name in system_names()]


def _row(name: str, system: Any) -> dict[str, Any]:
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


def shown(name: str) -> dict[str, Any]:
    from etude.machine import open_system

    return dict(open_system(name).to_dict())


def checked(path: Path) -> Any:
    from etude.machine import open_system

    if not path.is_file():
        raise UsageError("no such file", where=str(path))
    return path, open_system(path)


def say_checked(found: Any) -> None:
    from etude.base.units import format_bandwidth

    path, system = found
    say(f"{path}: `{system.name}`, {len(system):,} devices, no problems found")
    if system.topology is not None:
        graph = system.topology
        say(f"a graph of {len(graph.kind):,} vertices and {len(graph.src):,} links, one for each direction")
        if system.irregular:
            say(f"it has no levels: {system.irregular}; `--network flow` or `links` simulates it, closed forms do not")
        for level in () if system.irregular else system.levels:
            rate = format_bandwidth(int(level.bandwidth_bytes_per_s))
            say(f"level `{level.name}`: {level.kind} of {level.size:,} at {rate}, {level.latency_ns:g} ns")


VERBS = (
    Verb(name="systems", asks=Systems, inputs=lambda asked: None, run=listed, show=emit),
    Verb(name="systems list", asks=ListSystems, inputs=lambda asked: None, run=listed, show=emit),
    Verb(name="systems show", asks=ShowSystem, inputs=lambda asked: asked.name, run=shown, show=print_yaml),
    Verb(name="systems check", asks=CheckSystem, inputs=lambda asked: Path(asked.path), run=checked, show=say_checked),
)
