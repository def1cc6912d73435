"""Options of a simulation, from settings that were given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.base.shapes import names_in
from etude.cost.schedule import Schedule
from etude.machine.system import System
from etude.model.job import Job
from etude.model.schema import Kind
from etude.run.simulate.choices import Compute, Network
from etude.run.simulate.options import Options
from etude.run.simulate.settings import texts

Opener = Callable[[str, str], "Schedule | None"]
"""(Text, collective) -> the algorithm in the file of that name; None: not a file, but the name of an algorithm."""

_AS_THEY_ARE: Final = names_in("""
    network routing fabric policy collective_times concurrent_network contention units seed fold
""")
_READ: Final[dict[str, tuple[str, Callable[[Sequence[str]], Any]]]] = {
    "kernel": ("kernels", tuple),
    "packets": ("packets", tuple),
    "overlap": ("overlap", texts.overlap),
    "share": ("share", texts.shares),
    "grain": ("grain", texts.grain),
    "jitter": ("jitter", texts.jitter),
    "slow_rank": ("slow_ranks", texts.slow_ranks),
    "link_change": ("link_changes", texts.link_changes),
    "remote_memory": ("remote_memory", texts.remote_memory),
}
"""Setting -> the option that it sets, and how its texts are read."""
_ON_LINKS: Final = ("routing", "link_change", "link_stats")


def named_options(given: Mapping[str, Any], opened: Opener) -> dict[str, Any]:
    """Options of `etude.run.simulate.simulate` by name, of settings that were given."""
    found = {name: given[name] for name in _AS_THEY_ARE if name in given}
    for name, (option, read) in _READ.items():
        if name in given:
            found[option] = read(given[name])
    if "eager" in given:
        found["eager_bytes"] = given["eager"]
    if "compute" in given:
        found |= _compute(given["compute"])
    if "collective" in given:
        found["collective"] = _algorithms(given["collective"], opened)
    if given.keys() & {"slow_link", "failed_link"}:
        found["slow_links"] = texts.slow_links(given.get("slow_link", ()), given.get("failed_link", ()))
    return found


def check_network(options: Options, system: System, given: Mapping[str, Any], spelled: Callable[[str], str]) -> Options:
    """The options on the network of a system. Settings that were given and that this network does not read are
    refused, as `spelled` writes them."""
    network = options.network or (Network.ANALYTIC if system.topology is None else Network.FLOW)
    unread = [] if network.has_links else [name for name in _ON_LINKS if name in given]
    if unread:
        problem = f"{spelled(unread[0])} is read only by networks with links, and `{network}` has closed forms"
        raise UsageError(problem, hint=f"{spelled('network')} flow".replace("`", ""))
    return options.on(system)


def unused_by(job: Job, options: Options) -> list[str]:
    """Settings that change nothing, because the job has nothing that they are about."""
    kinds = set[int]().union(*(np.unique(trace.kind).tolist() for trace in job.traces))
    about = {
        "eager": (options.eager_bytes is not None, {Kind.SEND, Kind.RECV}, "messages"),
        "remote-memory": (options.remote_memory is not None, {Kind.MEM_LOAD, Kind.MEM_STORE}, "loads or stores"),
        "collective": (bool(options.collective), {Kind.COLL}, "collectives"),
    }
    return [
        f"--{name} changes nothing: the job has no {what}"
        for name, (given, of, what) in about.items()
        if given and not kinds & of
    ]


def _compute(text: str) -> dict[str, Any]:
    """`recorded` (or `measured`), `roofline`, `table=FILE`, `scale=FACTOR`."""
    name, equals, value = text.partition("=")
    if name == "table" and value:
        return {"compute": Compute.TABLE, "table": value}
    if name == "scale" and value:
        return {"compute": Compute.SCALED, "scale": texts.numbers("compute", [text])["scale"]}
    if equals or name not in ("recorded", "measured", "roofline"):
        raise UsageError(f"--compute: unknown value `{text}`", hint="recorded, roofline, table=ops.csv, scale=0.5")
    return {"compute": Compute.RECORDED if name == "measured" else Compute(name)}


def _algorithms(given: Sequence[str], opened: Opener) -> dict[str, Any]:
    """Names of algorithms, or algorithms from files: one for each size of group."""
    found: dict[str, Any] = {}
    for name, value in texts.pairs("collective", given):
        own, before = opened(value, name), found.get(name, [])
        if name in found and (own is None or isinstance(before, str)):
            raise UsageError(f"--collective: `{name}` is given twice", hint="leave one of them out")
        found[name] = value if own is None else [*before, own]
    return found
