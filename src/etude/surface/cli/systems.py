from pathlib import Path
from typing import Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.surface.cli.app import RUN, app
from etude.surface.cli.groups import Group
from etude.surface.cli.output import AsJson, emit, say

systems = typer.Typer(cls=Group, help="The catalogue of systems: list, show one, check your own file")
app.add_typer(systems, name="systems", rich_help_panel=RUN)


@systems.callback(invoke_without_command=True)
def all_systems(context: typer.Context, json: AsJson = False) -> None:
    """The catalogue of systems: list, show one, check your own file"""
    if context.invoked_subcommand is None:
        list_systems(json)


@systems.command("list")
def list_systems(json: AsJson = False) -> None:
    """The systems of the catalogue: devices, memory, links"""
    from etude.machine import open_system, system_names

    emit([_row(name, open_system(name)) for name in system_names()], json=json)


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


@systems.command()
def show(
    name: Annotated[str, typer.Argument(help="Name in the catalogue, or a file.")],
    json: AsJson = False,
) -> None:
    """Every figure of one system, with its source, as YAML that can be changed and used"""
    import yaml

    from etude.machine import open_system

    found = open_system(name).to_dict()
    if json:
        emit(found, json=True)
    else:
        print(yaml.safe_dump(found, sort_keys=False, allow_unicode=True), end="")


@systems.command()
def check(path: Annotated[Path, typer.Argument(help="YAML, or an InfraGraph.")]) -> None:
    """Is a system file sound? Names the key that is wrong; exit code 2 if one is"""
    from etude.base.units import format_bandwidth
    from etude.machine import open_system

    if not path.is_file():
        raise UsageError("no such file", where=str(path))
    system = open_system(path)
    say(f"{path}: `{system.name}`, {len(system):,} devices, no problems found")
    if system.topology is not None:
        graph = system.topology
        say(f"a graph of {len(graph.kind):,} vertices and {len(graph.src):,} links, one for each direction")
        if system.irregular:
            say(f"it has no levels: {system.irregular}; `--network flow` or `links` simulates it, closed forms do not")
        for level in () if system.irregular else system.levels:
            rate = format_bandwidth(int(level.bandwidth_bytes_per_s))
            say(f"level `{level.name}`: {level.kind} of {level.size:,} at {rate}, {level.latency_ns:g} ns")
