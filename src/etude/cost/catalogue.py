"""The systems that Etude knows, and systems from files.

system("dgx-h100")                  # one of `names()`
system("dgx-h100").resized(512)     # 64 nodes of it
system("my_cluster.yaml")           # a file; its `device` is a catalogue name or a description of its own
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from etude.errors import ClusterError
from etude.model.system import Device, System

_SUFFIXES = (".yaml", ".yml", ".json")


def _folder(*parts: str) -> Traversable:
    return files("etude.cost").joinpath("systems", *parts)


def _stems(folder: Traversable) -> list[str]:
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))


@cache
def names() -> tuple[str, ...]:
    """Systems of the catalogue."""
    return tuple(_stems(_folder()))


@cache
def device_names() -> tuple[str, ...]:
    """Devices of the catalogue."""
    return tuple(_stems(_folder("devices")))


@cache
def device(name: str) -> Device:
    """A device of the catalogue."""
    if name not in device_names():
        raise ClusterError(f"unknown device `{name}`", hint=f"known: {', '.join(device_names())}")
    where = f"devices/{name}.yaml"
    return Device.from_dict(_parse(_folder("devices", f"{name}.yaml").read_text("utf-8"), where), where)


def system(name_or_path: str | PathLike[str]) -> System:
    """A system of the catalogue, or of a YAML or JSON file."""
    text = fspath(name_or_path)
    if text in names():
        return _from_catalogue(text)
    if text.endswith(_SUFFIXES) or Path(text).is_file():
        return load(text)
    raise ClusterError(f"unknown system `{text}`", hint=f"known: {', '.join(names())}; or the path of a .yaml file")


def load(path: str | PathLike[str]) -> System:
    """A system from a YAML or JSON file, or an error that says `file: key: problem`."""
    return read_system(read_file(path), fspath(path))


def read_file(path: str | PathLike[str]) -> Any:
    """What a YAML or JSON file holds."""
    where = fspath(path)
    try:
        text = Path(path).read_text("utf-8")
    except OSError as problem:
        raise ClusterError(str(problem.strerror or problem).lower(), where=where) from None
    except UnicodeDecodeError:
        raise ClusterError("is not a text file", where=where) from None
    return _parse(text, where)


@cache
def _from_catalogue(name: str) -> System:
    return read_system(_parse(_folder(f"{name}.yaml").read_text("utf-8"), f"{name}.yaml"), f"{name}.yaml")


def read_system(given: Any, where: str) -> System:
    """A system from plain mappings; `where` names the file in messages."""
    if isinstance(given, Mapping) and isinstance(given.get("device"), str):
        try:
            known = device(given["device"])
        except ClusterError as problem:
            raise ClusterError(problem.problem, where=f"{where}: device", hint=problem.hint) from None
        # Read as a system whose device is looked up already: the rest is checked as ever.
        bare = System.from_dict({**given, "device": {"name": known.name}}, where)
        return bare.replace(device=known)
    return System.from_dict(given, where)


def _parse(text: str, where: str) -> Any:
    import yaml  # here, so that what needs no file needs no parser

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """YAML that refuses a key given twice."""

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        seen: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            if key in seen:
                raise ClusterError(f"key `{key}` stands twice", where=f"{where}: line {key_node.start_mark.line + 1}")
            seen[key] = loader.construct_object(value_node, deep=True)
        return seen

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        at = f"{where}: line {mark.line + 1}" if mark else where
        raise ClusterError(getattr(problem, "problem", None) or "is not YAML", where=at) from None
    except (TypeError, RecursionError, ValueError):
        raise ClusterError("is not plain YAML", where=where) from None
