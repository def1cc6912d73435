"""The single entry point to a System: a name of the catalogue, or a file of any kind that describes a machine.

open_system("dgx-h100")                  the catalogue; `.resized(512)` is 64 nodes of it
open_system("rtx5090")                   a device of the catalogue by itself: one of it
open_system("rtx5090@25GB/s")            such devices on a switch, each with this link
open_system("my_cluster.yaml")           levels, and a device of the catalogue or of its own
open_system("my_graph.yaml")             `topology: cluster.yaml`, an InfraGraph next to it
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

from etude.base.errors import ClusterError, in_file
from etude.base.figures import parse, read_file
from etude.machine.dumps import read_dump, sort_of
from etude.machine.dumps.files import KEYS as DUMP_KEYS
from etude.machine.mix import as_text
from etude.machine.regions import with_round_trips
from etude.machine.system import Device, System

if TYPE_CHECKING:
    from etude.machine.infragraph.annotations import AnnotatedTopology

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
        raise ClusterError(f"unknown device `{name}`", hint=_known(name, device_names()))
    where = f"devices/{name}.yaml"
    return Device.from_dict(parse(_folder("devices", f"{name}.yaml").read_text("utf-8"), where), where)


def _known(word: str, names: tuple[str, ...]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, names, 1)
    return (f"did you mean `{near[0]}`? " if near else "") + f"known: {', '.join(names)}"


@cache
def _from_catalogue(name: str) -> System:
    return system_of(parse(_folder(f"{name}.yaml").read_text("utf-8"), f"{name}.yaml"), f"{name}.yaml")


@cache
def _linked(name: str, link: str, source: str = "as given") -> System:
    """Devices of the catalogue on a switch, each with a link of this bandwidth."""
    level = {"name": "host", "kind": "switch", "size": 1, "bandwidth": link, "latency": "5us",
             "source": {"bandwidth": source, "latency": "assumption: order of magnitude of a network"}}  # fmt: skip
    return system_of({"name": name, "doc": "one device", "device": name, "levels": [level]}, name)


@cache
def _alone(name: str) -> System:
    """A device of the catalogue by itself. A level needs a bandwidth; nothing is ever sent over this one."""
    nodes = [one for one in system_names() if _device_name(one) == name and len(_from_catalogue(one)) > 1]
    such = f"use a system of such devices: {', '.join(nodes)}; or its link" if nodes else "give its link"
    hint = f"{such}: `{name}@25GB/s` (bandwidth of each, one direction), or a .yaml file with `levels`"
    return _linked(name, "25GB/s", "assumption: no figure; not used while there is one device").replace(linkless=hint)


def _device_name(system: str) -> str:
    """The device of a system of the catalogue, by its name there."""
    return str(parse(_folder(f"{system}.yaml").read_text("utf-8"), f"{system}.yaml")["device"])


# -- files -------------------------------------------------------------------------------------------------------------


def open_system(name_or_path: str | PathLike[str]) -> System:
    """A system of the catalogue or of a file: levels, an InfraGraph, or what an InfraGraph leaves open.

    etude.open_system("dgx-h100").device.name
    """
    text = fspath(name_or_path)
    if text in system_names():
        return _from_catalogue(text)
    device, _, link = text.partition("@")
    if device in device_names():
        return _linked(device, link).replace(name=text) if link else _alone(device)
    if not Path(text).is_file() and not text.endswith(_SUFFIXES):
        known = _known(text, system_names())
        raise ClusterError(f"unknown system `{text}`", hint=f"{known}; or the path of a .yaml file")
    if Path(text).is_file() and (sort := sort_of(Path(text))) is not None:
        return _of_cluster(read_dump(Path(text), sort, {}), {"name": Path(text).stem}, text)
    if Path(text).is_file() and _is_infragraph(Path(text)):
        cluster = _cluster(Path(text), None)
        return _of_cluster(cluster, {"name": cluster.topology.name}, text)
    given = read_file(text)
    if isinstance(given, Mapping) and "circuits" in given:
        return _with_circuits(given, text)
    if not isinstance(given, Mapping) or "topology" not in given:
        return system_of(given, text)
    beside = {key: _beside(given, key, text) for key in ("topology", "annotations") if key in given}
    if beside["topology"].is_file() and (sort := sort_of(beside["topology"])) is not None:
        rest = {key: value for key, value in given.items() if key != "topology"}
        about = {key: rest.pop(key) for key in DUMP_KEYS[sort] if key in rest}
        return _of_cluster(read_dump(beside["topology"], sort, about), rest, text)
    rest = {key: value for key, value in given.items() if key not in beside}
    return _of_cluster(_cluster(beside["topology"], beside.get("annotations")), rest, text)


def system_of(given: Any, where: str) -> System:
    """A system from plain mappings; `where` names the file in messages."""
    given = with_round_trips(given, where)
    if isinstance(given, Mapping) and isinstance(given.get("devices"), Mapping):
        return _mixed(given, where)
    if isinstance(given, Mapping) and isinstance(given.get("device"), str):
        known = _open_at(given["device"], f"{where}: device")
        # Read as a system whose device is looked up already: the rest is checked as ever.
        bare = System.from_dict({**given, "device": {"name": known.name}}, where)
        return bare.replace(device=known)
    return System.from_dict(given, where)


def _mixed(given: Mapping[str, Any], where: str) -> System:
    """A system of several kinds of devices, each of its own or of the catalogue."""
    parts = {str(name): part if isinstance(part, str) else _numbers(part) for name, part in given["devices"].items()}
    if not parts:
        raise ClusterError("no kind of device is given", where=f"{where}: devices", hint="h100: 0-15")
    own = given.get("kinds") or {}
    known = {name: _open_at(name, f"{where}: devices") for name in parts if name not in own}
    first = next(iter(parts))
    rest = {key: value for key, value in given.items() if key not in ("devices", "kinds")}
    base = {**rest, "kinds": own, "device": rest.get("device", own.get(first, first))}
    bare = system_of(base, where)
    kinds = {name: known.get(name) or bare.kinds[name] for name in parts}
    try:
        return bare.replace(devices=parts, kinds=kinds)
    except ClusterError as problem:
        raise ClusterError(problem.problem, where=where, hint=problem.hint) from None


def _numbers(part: Any) -> str:
    """`3`, or `[0, 1, 5]`, as text."""
    return ", ".join(str(number) for number in part) if isinstance(part, list) else str(part)


def _open_at(name: str, where: str) -> Device:
    try:
        return open_device(name)
    except ClusterError as problem:
        raise ClusterError(problem.problem, where=where, hint=problem.hint) from None


def _with_circuits(given: Mapping[str, Any], where: str) -> System:
    """Devices that an optical switch joins, by themselves or beside the levels."""
    from etude.machine.circuits import read_circuits
    from etude.machine.fabrics import topology_of_system
    from etude.machine.infragraph.annotations import AnnotatedTopology

    rest = {key: value for key, value in given.items() if key != "circuits"}
    for key in ("topology", "placement"):
        if key in rest:
            raise ClusterError(f"`{key}` cannot be combined with `circuits`", where=where)
    base = system_of(rest, where) if "levels" in rest else None
    beside = None if base is None else topology_of_system(base)
    with in_file(where):
        fabric = read_circuits(given["circuits"], "circuits", beside)
    cluster = AnnotatedTopology(fabric.topology, ({},), np.zeros(len(fabric.topology), np.int32))
    made = _of_cluster(cluster, rest, where)
    return made.replace(link_changes=fabric.changes, phases=fabric.phases)


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


def _cluster(path: Path, annotations: Path | None) -> AnnotatedTopology:
    from etude.machine.infragraph.files import read_cluster

    with in_file(str(path)):
        return read_cluster(path, annotations)


def _of_cluster(cluster: AnnotatedTopology, given: Mapping[str, Any], where: str) -> System:
    """The system of a graph. `given` are the other keys of a system's file, over what the graph says by itself."""
    from etude.machine.levels import levels_of

    topology, count = cluster.topology, len(cluster.topology)
    own = {"device": {"name": "xpu"}, "levels": [{"name": "graph", "kind": "switch", "size": count, "bandwidth": 1}]}
    system = system_of({**own, **given}, where)
    if len(system) != count:
        problem = f"levels of {len(system):,} devices do not match a graph of {count:,}"
        raise ClusterError(problem, where=f"{where}: levels", hint="leave them out: they are derived from the graph")
    if system.placement:
        topology = replace(topology, device=topology.device[list(system.placement)])
    if "device" not in given and "devices" not in given:
        kinds = _devices(cluster, where)
        names = [f"xpu{number}" for number in range(len(kinds))]
        system = system.replace(device=kinds[0])
        if len(kinds) > 1:
            parts = as_text(names, np.unique(cluster.figure_of, return_inverse=True)[1].reshape(-1))
            system = system.replace(devices=parts, kinds=dict(zip(names, kinds, strict=True)))
    if "levels" in given:
        return system.replace(topology=topology)
    with in_file(where):
        found = levels_of(topology)
    place = () if (found.place == np.arange(len(topology))).all() else tuple(found.place.tolist())
    return system.replace(levels=found.levels, placement=place, topology=topology, irregular=found.irregular)


def _devices(cluster: AnnotatedTopology, where: str) -> list[Device]:
    """The devices that the annotations describe, each kind once."""
    kinds = sorted({int(f) for f in cluster.figure_of})
    empty = [kind for kind in kinds if not cluster.figures[kind]]
    if empty and len(kinds) > 1:
        rank = int((cluster.figure_of == empty[0]).argmax())
        hint = "annotate all of them: 'host[:]xpu[:]'"
        raise ClusterError(f"the device of rank {rank} is not described, but others are", where=where, hint=hint)
    return [_device(dict(cluster.figures[kind])) for kind in kinds]


def _device(figures: dict[str, Any]) -> Device:
    peak = {key.removeprefix("flops."): figures.pop(key) for key in list(figures) if key.startswith("flops.")}
    known: dict[str, Any] = {_FIGURES[key]: value for key, value in figures.items()}
    return Device(name="xpu", peak_flop_per_s={k: float(v) for k, v in peak.items()}, **known)
