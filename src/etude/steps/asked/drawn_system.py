"""The fabric of a system as a picture: what `etude systems draw` asks for."""

from dataclasses import dataclass

from etude.base.errors import UsageError
from etude.base.figures import argument, figure
from etude.base.outputs import OutputPlace, Written


@dataclass(frozen=True, kw_only=True)
class DrawSystem(Written):
    """A picture of a fabric: devices, switches in layers, the rate and latency of every connection

    etude systems draw cluster.yaml -o fabric.svg
    etude systems draw dgx-h100 --ranks 32 -o fabric.svg
    """

    system: str = argument("text", "a name of the catalogue, or a file: YAML, InfraGraph", like="dgx-a100")
    out: str = figure("out", "the file to write: `fabric.svg`", names=("-o",), like="other.svg")
    ranks: int | None = figure("count", "draw a slice with this many devices; by default all", None, like=16)


@dataclass(frozen=True, slots=True)
class DrawInputs:
    system: str
    ranks: int | None
    place: OutputPlace


def draw_inputs(asked: DrawSystem) -> DrawInputs:
    place = OutputPlace.of(asked)
    assert place is not None
    if place.path.suffix != ".svg":
        problem = f"a fabric cannot be drawn as `{place.path.suffix}`"
        raise UsageError(problem, where=f"--out {place.path}", hint=".svg")
    return DrawInputs(asked.system, asked.ranks, place)


def draw_system(given: DrawInputs) -> str:
    from etude.base.files import writing
    from etude.machine import open_system
    from etude.machine.circuits import in_phase
    from etude.machine.fabrics import topology_of_system
    from etude.tell.view.fabric_svg import fabric_svg

    system = open_system(given.system)
    if given.ranks is not None:
        system = system.resized(given.ranks)
    topology = topology_of_system(system)
    paths = []
    for name, circuits in system.phases or (("", ()),):
        fabric = in_phase(system, topology, circuits) if name else topology
        path = given.place.path
        paths.append(path.with_name(f"{path.stem}-{name}.svg") if name else path)
        picture = fabric_svg(system.replace(name=f"{system.name}, {name}") if name else system, fabric)
        with writing(paths[-1], force=given.place.force) as place, place.open("w", encoding="utf-8") as file:
            file.write(picture)
    wrote = ", ".join(map(str, paths))
    return f"wrote {wrote}: {len(topology.device):,} devices, {len(topology.kind):,} vertices"
