"""Systems and algorithms by name, as a user types them: of the catalogue, or of a file of any kind that Etude reads.

open_system("dgx-h100")                  the catalogue
open_system("my_cluster.yaml")           levels; or `topology: cluster.yaml`, an InfraGraph beside it
open_system("cluster.infragraph.yaml")   an InfraGraph by itself, known by its content
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from etude.cost import catalogue
from etude.errors import ClusterError, EtudeError
from etude.model.schema import Collective
from etude.model.system import Device, System

if TYPE_CHECKING:
    from etude.cost.schedule import Schedule
    from etude.model.annotations import Cluster

_FIGURES: Final = {
    "memory": "memory_bytes",
    "memory_bandwidth": "memory_bandwidth_bytes_per_s",
    "launch": "launch_ns",
    "power_w": "power_w",
}
"""Annotation of a device -> field of `Device`."""


def open_system(name_or_path: str | PathLike[str]) -> System:
    """A system of the catalogue or of a file: levels, an InfraGraph, or what an InfraGraph leaves open."""
    text = fspath(name_or_path)
    if text in catalogue.names() or not Path(text).is_file():
        return catalogue.system(text)
    if _is_infragraph(Path(text)):
        cluster = _cluster(Path(text), None)
        return _of_cluster(cluster, {"name": cluster.topology.name}, text)
    given = catalogue.read_file(text)
    if not isinstance(given, Mapping) or "topology" not in given:
        return catalogue.read_system(given, text)
    files = {key: _beside(given, key, text) for key in ("topology", "annotations") if key in given}
    rest = {key: value for key, value in given.items() if key not in files}
    return _of_cluster(_cluster(files["topology"], files.get("annotations")), rest, text)


def _beside(given: Mapping[str, Any], key: str, where: str) -> Path:
    """A file that a file names: from the folder of the one that names it."""
    if not isinstance(given[key], str):
        raise ClusterError("expected the path of a file", where=f"{where}: {key}")
    return Path(where).parent / given[key]


def _is_infragraph(path: Path) -> bool:
    """By content: it has instances of devices, where a system has levels or names a topology."""
    text = path.read_bytes()
    if text.lstrip()[:1] == b"{":
        return b'"instances"' in text and b'"levels"' not in text
    keys = set(re.findall(rb"^([a-z]+):", text, re.MULTILINE))
    return b"instances" in keys and not keys & {b"levels", b"topology"}


@contextmanager
def _in_file(where: str) -> Iterator[None]:
    """What is wrong with a graph is wrong in its file."""
    try:
        yield
    except EtudeError as problem:
        if where in problem.where:
            raise
        place = f"{where}: {problem.where}" if problem.where else where
        raise ClusterError(problem.problem, where=place, hint=problem.hint) from None


def _cluster(path: Path, annotations: Path | None) -> Cluster:
    from etude.store.infragraph import read_cluster

    with _in_file(str(path)):
        return read_cluster(path, annotations)


def _of_cluster(cluster: Cluster, given: Mapping[str, Any], where: str) -> System:
    """The system of a graph. `given` are the other keys of a system's file, over what the graph says by itself."""
    from etude.model.levels import levels_of

    topology, count = cluster.topology, len(cluster.topology)
    own = {"device": {"name": "xpu"}, "levels": [{"name": "graph", "kind": "switch", "size": count, "bandwidth": 1}]}
    system = catalogue.read_system({**own, **given}, where)
    if len(system) != count:
        problem = f"levels of {len(system):,} devices stand beside a graph of {count:,}"
        raise ClusterError(problem, where=f"{where}: levels", hint="leave them away: they are worked out")
    if system.placement:
        topology = replace(topology, device=topology.device[list(system.placement)])
    if "device" not in given:
        system = system.replace(device=_device(cluster, where))
    if "levels" in given:
        return system.replace(topology=topology)
    with _in_file(where):
        found = levels_of(topology)
    place = () if (found.place == np.arange(len(topology))).all() else tuple(found.place.tolist())
    return system.replace(levels=found.levels, placement=place, topology=topology, irregular=found.irregular)


def _device(cluster: Cluster, where: str) -> Device:
    """The device that the annotations describe: one kind, since a system has one."""
    kinds = sorted({int(f) for f in cluster.figure_of})
    if len(kinds) > 1:
        first = [int((cluster.figure_of == k).argmax()) for k in kinds]
        raise ClusterError(
            f"ranks {first[0]} and {first[1]} sit on devices of different figures",
            where=where,
            hint="a system has one kind of device; slow ranks are for `--slow-rank`",
        )
    figures = dict(cluster.figures[kinds[0]])
    peak = {key.removeprefix("flops."): figures.pop(key) for key in list(figures) if key.startswith("flops.")}
    known: dict[str, Any] = {_FIGURES[key]: value for key, value in figures.items()}
    return Device(name="xpu", peak_flop_per_s={k: float(v) for k, v in peak.items()}, **known)


# -- algorithms --------------------------------------------------------------------------------------------------------


def is_algorithm_file(text: str) -> bool:
    """Whether a text on the command line names a file or a prefix of one, rather than an algorithm of ours."""
    path = Path(text)
    return path.suffix in (".xml", ".et", ".json") or path.exists() or path.with_name(f"{path.name}.0.et").exists()


def open_algorithm(path: str | PathLike[str], collective: str | Collective = Collective.NONE) -> Schedule:
    """A collective algorithm of your own: MSCCL-style XML, or a Chakra job of sends and receives."""
    from etude.cost.schedule_files import from_job, from_msccl
    from etude.opening import open as open_job

    what = Collective.parse(collective) if isinstance(collective, str) else collective
    place = Path(path)
    with _in_file(str(place)):
        if place.suffix == ".xml":
            try:
                return from_msccl(place.read_bytes())
            except OSError as problem:
                raise ClusterError(str(problem.strerror or problem).lower()) from None
        return from_job(open_job(place), what)
