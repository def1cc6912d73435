"""A file of services that share one device in turns.

system: dgx-a100
services: [{model: resnet-50, deadline: 50ms, exits: 3}, {model: vit-b16, rate: 200, deadline: 50ms}]
load: 0.8          # of what the device can do with whole networks and the largest batch; or a rate for each service
batch: 8           # largest batch: 1, 2, 4, ... up to it are predicted
count: 5000        # total number of requests
headroom: 0.2      # fraction of a deadline that edf and stability keep free for later requests
policy: stability  # fifo, edf, stability
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import figure, read, read_mapping, usage_errors

POLICIES: Final = ("fifo", "edf", "stability")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    model: str = figure("text", "model that is served")
    name: str = figure("text", "name of the service; else that of the model", "")
    rate: float = figure("number", "requests per second, Poisson", 0.0, zero=True)
    deadline_ns: int = figure("time", "time from arrival to completion", 50_000_000)
    exits: int = figure("count", "number of exits, in equal parts of the blocks; the last is the whole network", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    system: str = figure("text", "system whose device they share")
    services: Any = figure("one", "list of services", None)
    load: float = figure("number", "load of whole networks in the largest batch, with equal rates", 0.0, zero=True)
    batch: int = figure("count", "largest batch", 8)
    count: int = figure("count", "total number of requests", 5000)
    headroom: float = figure("number", "fraction of a deadline that edf and stability keep free", 0.0, zero=True)
    policy: str = figure("text", "fifo, edf, stability", "fifo")

    @property
    def sizes(self) -> list[int]:
        """Batch sizes: powers of two."""
        return [1 << k for k in range(self.batch.bit_length())]


def read_services(path: str | PathLike[str], policy: str = "") -> tuple[Services, list[Service]]:
    """Reads a file; `policy` overrides its value."""
    where = str(path)
    with usage_errors():
        spec = read(Services, read_mapping(path), where)
        if not isinstance(spec.services, list) or not spec.services:
            raise UsageError("services: a list", where=where, hint="services: [{model: resnet-50, rate: 100}]")
        found = [read(Service, one, f"{where}: services[{k}]") for k, one in enumerate(spec.services)]
    spec = replace(spec, policy=policy or spec.policy)
    if spec.policy not in POLICIES:
        raise UsageError(f"unknown policy `{spec.policy}`", where=where, hint=f"known: {', '.join(POLICIES)}")
    found = [replace(one, name=one.name or one.model) for one in found]
    if len({one.name for one in found}) < len(found):
        raise UsageError("two services have the same name", where=where, hint="name: second")
    rates = [one.rate > 0 for one in found]
    if any(rates) if spec.load else not all(rates):
        raise UsageError("either load, or a rate for each service", where=where, hint="load: 0.8")
    if spec.headroom >= 1:
        raise UsageError(f"headroom: {spec.headroom:g} leaves no time", where=where, hint="headroom: 0.2")
    if spec.batch & (spec.batch - 1):
        raise UsageError(f"batch: {spec.batch} is not a power of two", where=where, hint="batch: 8")
    return spec, found
