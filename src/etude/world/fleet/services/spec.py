"""Files of services, or of tasks of one backbone, that share one device in turns.

system: dgx-a100
services: [{model: resnet-50, deadline: 50ms, exits: 3}, {model: vit-b16, rate: 200, deadline: 50ms}]
load: 0.8          # of what the device can do with whole networks and the largest batch; or a rate for each service
batch: 8           # largest batch: 1, 2, 4, ... up to it are predicted
count: 5000        # total number of requests
headroom: 0.2      # fraction of a deadline that edf and stability keep free for later requests
policy: stability  # fifo, edf, stability

system: dgx-a100
backbone: vit-l16
tasks: 13              # or a list: [{name: a, weight: 3, rate: 50}, {name: b, rate: 50}]
extension: 8MB         # memory of a task beyond the backbone
extension_time: 0.1ms  # of the whole device, for each task that has requests in a batch
memory: 16GB           # for weights; else that of the device
policy: shared         # partition, colocate, shared
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import figure, read, read_mapping, text, usage_errors

POLICIES: Final = {"services": ("fifo", "edf", "stability"), "tasks": ("partition", "colocate", "shared")}

HINTS: Final = {"services": "services: [{model: resnet-50, rate: 100}]", "tasks": "tasks: 13"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDevice:
    """What services and tasks have in common."""

    system: str = figure("text", "system whose device they share")
    load: float = figure("number", "load of whole networks in the largest batch, with equal rates", 0.0)
    batch: int = figure("count", "largest batch", 8)
    count: int = figure("count", "total number of requests", 5000)

    @property
    def sizes(self) -> list[int]:
        """Batch sizes: powers of two."""
        return [1 << k for k in range(self.batch.bit_length())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    model: str = figure("text", "model that is served")
    name: str = text("name of the service; else that of the model")
    rate: float = figure("number", "requests per second, Poisson", 0.0)
    deadline_ns: int = figure("time", "time from arrival to completion", 50_000_000)
    exits: int = figure("count", "number of exits, in equal parts of the blocks; the last is the whole network", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services(SharedDevice):
    services: Any = figure("one", "list of services", None)
    headroom: float = figure("number", "fraction of a deadline that edf and stability keep free", 0.0)
    policy: str = figure("text", "fifo, edf, stability", "fifo")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneTask:
    name: str = text("name of the task; else its number")
    weight: float = figure("number", "its share of the backbone while all wait, or of a partition", 1.0)
    rate: float = figure("number", "requests per second, Poisson", 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backbone(SharedDevice):
    backbone: str = figure("text", "model that all tasks share")
    tasks: Any = figure("one", "number of tasks, or a list of them", None)
    extension_bytes: int = figure("bytes", "memory of a task beyond the backbone", 8_000_000)
    extension_time_ns: int = figure("time", "time for each task in a batch, on the whole device", 100_000, zero=True)
    memory_bytes: int = figure("bytes", "memory for weights; 0: that of the device", 0)
    policy: str = figure("text", "partition, colocate, shared", "shared")


def read_services(path: str | PathLike[str], policy: str = "") -> tuple[Services, list[Service]]:
    """Reads a file; `policy` overrides its value. Raises UsageError."""
    with usage_errors():
        spec = read(Services, read_mapping(path), str(path))
        found = _parts(spec.services, Service, "services", "a list", str(path))
    spec = replace(spec, policy=policy or spec.policy)
    found = [replace(one, name=one.name or one.model) for one in found]
    _check(spec, spec.policy, found, "services", str(path))
    if spec.headroom >= 1:
        raise UsageError(f"headroom: {spec.headroom:g} leaves no time", where=str(path), hint="headroom: 0.2")
    return spec, found


def read_backbone(path: str | PathLike[str], policy: str = "") -> tuple[Backbone, list[BackboneTask]]:
    """Reads a file; `policy` overrides its value. Raises UsageError."""
    with usage_errors():
        spec = read(Backbone, read_mapping(path), str(path))
        many = isinstance(spec.tasks, int) and not isinstance(spec.tasks, bool)
        given = [{}] * spec.tasks if many else spec.tasks
        found = _parts(given, BackboneTask, "tasks", "give a number or a list", str(path))
    spec = replace(spec, policy=policy or spec.policy)
    found = [replace(one, name=one.name or str(k)) for k, one in enumerate(found)]
    _check(spec, spec.policy, found, "tasks", str(path))
    return spec, found


def _parts(given: Any, kind: type[Any], key: str, form: str, where: str) -> list[Any]:
    if not isinstance(given, list) or not given:
        raise UsageError(f"{key}: {form}", where=where, hint=HINTS[key])
    return [read(kind, one, f"{where}: {key}[{k}]") for k, one in enumerate(given)]


def _check(spec: SharedDevice, policy: str, parts: list[Any], key: str, where: str) -> None:
    if policy not in POLICIES[key]:
        raise UsageError(f"unknown policy `{policy}`", where=where, hint=f"known: {', '.join(POLICIES[key])}")
    if len({one.name for one in parts}) < len(parts):
        raise UsageError(f"two {key} have the same name", where=where, hint="name: second")
    rates = [one.rate > 0 for one in parts]
    if any(rates) if spec.load else not all(rates):
        raise UsageError(f"either load, or a rate for each {key[:-1]}", where=where, hint="load: 0.8")
    if spec.batch & (spec.batch - 1):
        raise UsageError(f"batch: {spec.batch} is not a power of two", where=where, hint="batch: 8")
