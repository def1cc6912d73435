"""The one door to a System: a name of the catalogue, or a file of any kind that describes a machine.

open_system("dgx-h100")                  the catalogue; `.resized(512)` is 64 nodes of it
open_system("my_cluster.yaml")           levels, and a device of the catalogue or of its own
open_system("my_graph.yaml")             `topology: cluster.yaml`, an InfraGraph beside it
open_system("cluster.infragraph.yaml")   an InfraGraph by itself, known by its content
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from etude.config import parse, read_file
from etude.errors import ClusterError, in_file
from etude.machine.system import Device, System

if TYPE_CHECKING:
    from etude.machine.infragraph.annotations import Cluster

_SUFFIXES = (".yaml", ".yml", ".json")
_FIGURES: Final = {
    "memory": "memory_bytes",
    "memory_bandwidth": "memory_bandwidth_bytes_per_s",
    "launch": "launch_ns",
    "power_w": "power_w",
}
"""Annotation of a device -> field of `Device`."""


# -- the catalogue -----------------------------------------------------------------------------------------------------


def _folder(*parts: str) -> Traversable:
    return files("etude.machine").joinpath("catalogue", *parts)


def _stems(folder: Traversable) -> list[str]:
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))


@cache
def system_names() -> tuple[str, ...]:
    """Systems of the catalogue."""
    return tuple(_stems(_folder()))


@cache
def device_names() -> tuple[str, ...]:
    """Devices of the catalogue."""
    return tuple(_stems(_folder("devices")))


@cache
def open_device(name: str) -> Device:
    """A device of the catalogue."""
    if name not in device_names():
        raise ClusterError(f"unknown device `{name}`", hint=f"known: {', '.join(device_names())}")
    where = f"devices/{name}.yaml"
    return Device.from_dict(parse(_folder("devices", f"{name}.yaml").read_text("utf-8"), where), where)


@cache
def _from_catalogue(name: str) -> System:
    return system_of(parse(_folder(f"{name}.yaml").read_text("utf-8"), f"{name}.yaml"), f"{name}.yaml")


# -- files -------------------------------------------------------------------------------------------------------------


def open_system(name_or_path: str | PathLike[str]) -> System:
    """A system of the catalogue or of a file: levels, an InfraGraph, or what an InfraGraph leaves open."""
    text = fspath(name_or_path)
    if text in system_names():
        return _from_catalogue(text)
    if not Path(text).is_file() and not text.endswith(_SUFFIXES):
        known = ", ".join(system_names())
        raise ClusterError(f"unknown system `{text}`", hint=f"known: {known}; or the path of a .yaml file")
    if Path(text).is_file() and _is_infragraph(Path(text)):
        cluster = _cluster(Path(text), None)
        return _of_cluster(cluster, {"name": cluster.topology.name}, text)
    given = read_file(text)
    if not isinstance(given, Mapping) or "topology" not in given:
        return system_of(given, text)
    beside = {key: _beside(given, key, text) for key in ("topology", "annotations") if key in given}
    rest = {key: value for key, value in given.items() if key not in beside}
    return _of_cluster(_cluster(beside["topology"], beside.get("annotations")), rest, text)


def system_of(given: Any, where: str) -> System:
    """A system from plain mappings; `where` names the file in messages."""
    if isinstance(given, Mapping) and isinstance(given.get("device"), str):
        try:
            known = open_device(given["device"])
        except ClusterError as problem:
            raise ClusterError(problem.problem, where=f"{where}: device", hint=problem.hint) from None
        # Read as a system whose device is looked up already: the rest is checked as ever.
        bare = System.from_dict({**given, "device": {"name": known.name}}, where)
        return bare.replace(device=known)
    return System.from_dict(given, where)


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


def _cluster(path: Path, annotations: Path | None) -> Cluster:
    from etude.machine.infragraph.files import read_cluster

    with in_file(str(path)):
        return read_cluster(path, annotations)


def _of_cluster(cluster: Cluster, given: Mapping[str, Any], where: str) -> System:
    """The system of a graph. `given` are the other keys of a system's file, over what the graph says by itself."""
    from etude.machine.levels import levels_of

    topology, count = cluster.topology, len(cluster.topology)
    own = {"device": {"name": "xpu"}, "levels": [{"name": "graph", "kind": "switch", "size": count, "bandwidth": 1}]}
    system = system_of({**own, **given}, where)
    if len(system) != count:
        problem = f"levels of {len(system):,} devices stand beside a graph of {count:,}"
        raise ClusterError(problem, where=f"{where}: levels", hint="leave them away: they are worked out")
    if system.placement:
        topology = replace(topology, device=topology.device[list(system.placement)])
    if "device" not in given:
        system = system.replace(device=_device(cluster, where))
    if "levels" in given:
        return system.replace(topology=topology)
    with in_file(where):
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
