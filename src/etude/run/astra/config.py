"""ASTRA-sim's own configuration files, read as it reads them: unknown keys are ignored, and listed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any, Final

import yaml

from etude.base.errors import ClusterError
from etude.base.figures import safe_loader
from etude.model.job import Job
from etude.run.astra.abort import AstraAbort

TOPOLOGIES: Final = ("Ring", "FullyConnected", "Switch")
COLLECTIVES: Final = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
MEMORY_TYPES: Final = ("NO_MEMORY_EXPANSION", "PER_NPU_MEMORY_EXPANSION", "PER_NODE_MEMORY_EXPANSION", "MEMORY_POOL")
ALGORITHM: Final = re.compile(
    r"(?P<one>one)?(?P<name>[rR]ing|[dD]irect|[hH]alvingDoubling|doubleBinaryTree)(?P<window>\d+)?"
)

WORD: Final = re.compile(r"Ring|FullyConnected|Switch|0\.\d+|[1-9]\d*(?:\.\d+)?|0")
LIST: Final = re.compile(rf"([a-z_]+): +\[ *((?:{WORD.pattern})(?: *, *(?:{WORD.pattern}))*) *\]")
GROUP_ID: Final = re.compile(r"\s*\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """One entry of an implementation list: `ring`, `direct4`, `oneHalvingDoubling`."""

    name: str
    is_flat: bool = False
    """One ring over all NPUs instead of one per dimension."""
    window: int = -1
    """Messages that `direct` keeps in flight; -1 is all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """Dimensions of the network, the fastest-varying first."""

    topology: tuple[str, ...]
    npus_count: tuple[int, ...]
    bandwidth_gibyte_per_s: tuple[float, ...]
    latency_ns: tuple[float, ...]
    ignored: tuple[str, ...] = ()

    @property
    def num_npus(self) -> int:
        total = 1
        for n in self.npus_count:
            total *= n
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemConfig:
    """What a system file says; None is a key that is not there."""

    algorithms: dict[str, tuple[Implementation, ...]] = field(default_factory=dict)
    custom: dict[str, str] = field(default_factory=dict)
    """Collective -> prefix of the traces that describe it."""
    custom_nodes: dict[int, str] = field(default_factory=dict)
    """Node id -> prefix, for single nodes."""
    splits: int | None = None
    active_chunks: int = 1
    endpoint_delay_ns: float | None = None
    local_mem_gbyte_per_s: float | None = None
    peak_tflop_per_s: float = 0.0
    has_roofline: bool = False
    is_replay_only: bool = False
    optimization: str | None = None
    has_policy: bool = True
    has_shared_bus: bool = False
    ignored: tuple[str, ...] = ()

    @property
    def custom_prefixes(self) -> set[str]:
        """Of all traces that describe collectives: `<prefix>.0.et`, `<prefix>.1.et`, ..."""
        return {*self.custom.values(), *self.custom_nodes.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteMemoryConfig:
    """Remote memory: `kind` is one of MEMORY_TYPES."""

    kind: str = "NO_MEMORY_EXPANSION"
    latency_ns: int = 0
    bytes_per_ns: int = 0
    num_nodes: int = 0
    npus_per_node: int = 0
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AstraOptions:
    """What else ASTRA-sim's command line says."""

    remote_memory: RemoteMemoryConfig = field(default_factory=RemoteMemoryConfig)
    groups: Mapping[int, Sequence[int]] | None = None
    """Id -> ranks in ring order; None takes the groups of the job."""
    backend: str = "unaware"
    num_queues_per_dim: int = 1
    rendezvous: bool = False
    injection_scale: float = 1.0
    custom: Mapping[str, Job] = field(default_factory=dict)
    """The traces that the system file names as implementations of collectives, by their prefix."""
    is_one_for_all: bool = False
    """The job is one trace, which every NPU runs."""
    is_message_by_message: bool = False
    """Run every message of every collective as an event. Without it, a collective is worked out when its last member
    joins, where that gives the same times."""


Path_ = str | PathLike[str]


def _load(path: Path_, parse: Any) -> dict[Any, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise ClusterError(error.strerror or "cannot be read", where=fspath(path)) from None
    except UnicodeDecodeError as error:
        raise ClusterError(f"not text: {error}", where=fspath(path)) from None
    try:
        value = parse(text)
    except (ValueError, yaml.YAMLError) as error:
        raise ClusterError(f"cannot be read: {str(error).splitlines()[0]}", where=fspath(path)) from None
    except RecursionError:
        raise ClusterError("nested too deeply", where=fspath(path)) from None
    if not isinstance(value, dict):
        raise ClusterError("the file must contain a mapping", where=fspath(path))
    return value


def _number(value: Any, key: str, path: Path_, *, low: float | None = None, strictly: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ClusterError(f"`{key}` must be a number, not {value!r}", where=fspath(path))
    if low is not None and (value < low or (strictly and value == low)):
        raise ClusterError(
            f"`{key}` must be {'above' if strictly else 'at least'} {low:g}, not {value!r}", where=fspath(path)
        )
    return value


def _list(value: Any, key: str, path: Path_) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ClusterError(f"`{key}` must be a list with an entry per dimension, not {value!r}", where=fspath(path))
    return value


def _yaml(text: str) -> Any:
    return yaml.load(text, safe_loader())


def _lists(text: str) -> Any:
    """YAML. Files of lists in brackets, as ASTRA-sim's are, take a tenth of the time of the general reader."""
    found: dict[str, list[Any]] = {}
    for line in text.splitlines():
        bare = line.partition("#")[0].rstrip()
        match = LIST.fullmatch(bare)
        if match is not None and match[1] not in found:
            found[match[1]] = [x if x.isalpha() else float(x) if "." in x else int(x) for x in WORD.findall(match[2])]
        elif bare:
            return _yaml(text)
    return found


def read_network(path: Path_) -> NetworkConfig:
    """Read a network YAML: four lists of equal length."""
    raw = _load(path, _lists)
    keys = ("topology", "npus_count", "bandwidth", "latency")
    for key in keys:
        if key not in raw:
            raise ClusterError(f"key `{key}` is missing", where=fspath(path), hint=f"needed: {', '.join(keys)}")
    lists = {key: _list(raw[key], key, path) for key in keys}
    dims = len(lists["topology"])
    for key in keys:
        if len(lists[key]) != dims:
            raise ClusterError(f"`{key}` has {len(lists[key])} entries, `topology` has {dims}", where=fspath(path))
    for name in lists["topology"]:
        if name not in TOPOLOGIES:
            raise ClusterError(f"unknown topology {name!r}", where=fspath(path), hint=f"known: {', '.join(TOPOLOGIES)}")
    for n in lists["npus_count"]:
        if isinstance(n, bool) or not isinstance(n, int) or n < 2:
            raise ClusterError(f"`npus_count` must contain whole numbers above 1, not {n!r}", where=fspath(path))
    return NetworkConfig(
        topology=tuple(lists["topology"]),
        npus_count=tuple(lists["npus_count"]),
        bandwidth_gibyte_per_s=tuple(
            float(_number(b, "bandwidth", path, low=0, strictly=True)) for b in lists["bandwidth"]
        ),
        latency_ns=tuple(float(_number(x, "latency", path, low=0)) for x in lists["latency"]),
        ignored=tuple(sorted(str(k) for k in raw if k not in keys)),
    )


def parse_algorithm(text: Any, where: str) -> Implementation:
    """`ring`, `direct`, `direct4`, `halvingDoubling`, `doubleBinaryTree`, or `one...` for one flat ring."""
    match = ALGORITHM.fullmatch(text) if isinstance(text, str) else None
    if match is not None:
        name, one, window = match["name"], match["one"] is not None, match["window"]
        is_spelled = name[0].isupper() == one and not (one and name == "doubleBinaryTree")
        if is_spelled and (window is None or name.lower() == "direct"):
            # The original reads five digits of the window and no more.
            return Implementation(
                name=name[0].lower() + name[1:], is_flat=one, window=int(window[:5]) if window else -1
            )
    raise ClusterError(
        f"unknown collective implementation {text!r}",
        where=where,
        hint="known: ring, direct, direct<window>, halvingDoubling, doubleBinaryTree, "
        "oneRing, oneDirect, oneHalvingDoubling",
    )


_SYSTEM_KEYS: Final = {
    "scheduling-policy",
    "collective-optimization",
    "preferred-dataset-splits",
    "active-chunks-per-dimension",
    "endpoint-delay",
    "local-mem-bw",
    "peak-perf",
    "roofline-enabled",
    "replay-only",
    "trace-enabled",
    "track-local-mem",
    "local-mem-trace-filename",
    "model-shared-bus",
    "L",
    "o",
    "g",
    "G",
    "local-reduction-delay",
    "per-node-custom-implementation",
    *(f"{c}-implementation" for c in COLLECTIVES),
    *(f"{c}-implementation-custom" for c in COLLECTIVES),
}


def _choice(raw: dict[Any, Any], key: str, known: tuple[str, ...], path: Path_) -> str | None:
    value = raw.get(key)
    if value is not None and value not in known:
        raise ClusterError(f"`{key}` is {value!r}", where=fspath(path), hint=f"known: {', '.join(known)}")
    return value


def _whole(raw: dict[Any, Any], key: str, path: Path_, default: int | None, low: int) -> int | None:
    if key not in raw:
        return default
    value = _number(raw[key], key, path, low=low)
    if not math.isfinite(value):
        raise ClusterError(f"`{key}` must be a whole number, not {value!r}", where=fspath(path))
    return int(value)


def _custom_nodes(name: Any, path: Path_) -> dict[int, str]:
    """The YAML file that names custom collectives for single nodes."""
    if name is None:
        return {}
    raw = _load(name, _yaml)
    if not all(isinstance(k, int) and isinstance(v, str) for k, v in raw.items()):
        raise ClusterError("must map node ids to paths", where=f"{fspath(path)}: {name}")
    return raw


def read_system(path: Path_) -> SystemConfig:
    """Read a system JSON."""
    raw = _load(path, json.loads)
    where = fspath(path)

    def number(key: str, default: float | None) -> float | None:
        return _number(raw[key], key, path, low=0) if key in raw else default

    custom = {}
    for name in COLLECTIVES:
        files = raw.get(f"{name}-implementation-custom")
        if files is not None:
            if not isinstance(files, list) or len(files) != 1 or not isinstance(files[0], str):
                raise ClusterError(f"`{name}-implementation-custom` must be a list of one path", where=where)
            custom[name] = files[0]
    return SystemConfig(
        algorithms={
            name: tuple(parse_algorithm(a, where) for a in _list(raw[f"{name}-implementation"], name, path))
            for name in COLLECTIVES
            if f"{name}-implementation" in raw
        },
        custom=custom,
        custom_nodes=_custom_nodes(raw.get("per-node-custom-implementation"), path),
        splits=_whole(raw, "preferred-dataset-splits", path, None, 0),
        active_chunks=_whole(raw, "active-chunks-per-dimension", path, 1, 1) or 1,
        endpoint_delay_ns=number("endpoint-delay", None),
        local_mem_gbyte_per_s=number("local-mem-bw", None),
        peak_tflop_per_s=number("peak-perf", 0.0) or 0.0,
        has_roofline=bool(number("roofline-enabled", 0.0)),
        is_replay_only=bool(number("replay-only", 0.0)),
        optimization=_choice(raw, "collective-optimization", ("baseline", "localBWAware"), path),
        has_policy=_choice(raw, "scheduling-policy", ("LIFO", "FIFO", "EXPLICIT"), path) is not None,
        has_shared_bus=raw.get("model-shared-bus") == 1,
        ignored=tuple(sorted(str(k) for k in raw if k not in _SYSTEM_KEYS)),
    )


def read_remote_memory(path: Path_) -> RemoteMemoryConfig:
    """Read a remote memory JSON."""
    raw = _load(path, json.loads)
    known = ("memory-type", "remote-mem-latency", "remote-mem-bw", "num-nodes", "num-npus-per-node")
    kind = _choice(raw, "memory-type", MEMORY_TYPES, path) or "NO_MEMORY_EXPANSION"
    memory = RemoteMemoryConfig(
        kind=kind,
        latency_ns=_whole(raw, "remote-mem-latency", path, 0, 0) or 0,
        bytes_per_ns=_whole(raw, "remote-mem-bw", path, 0, 0) or 0,
        num_nodes=_whole(raw, "num-nodes", path, 0, 0) or 0,
        npus_per_node=_whole(raw, "num-npus-per-node", path, 0, 0) or 0,
        ignored=tuple(sorted(str(k) for k in raw if k not in known)),
    )
    if kind != "NO_MEMORY_EXPANSION" and memory.bytes_per_ns == 0:
        raise ClusterError("`remote-mem-bw` must be above 0", where=fspath(path))
    if kind == "PER_NODE_MEMORY_EXPANSION" and (memory.num_nodes == 0 or memory.npus_per_node == 0):
        raise ClusterError("`num-nodes` and `num-npus-per-node` must be above 0", where=fspath(path))
    return memory


def read_groups(path: Path_) -> dict[int, tuple[int, ...]]:
    """Read a communicator group JSON: id above 0 -> ranks in ring order."""
    return check_groups(_load(path, json.loads), fspath(path))


def check_groups(given: Mapping[str, Any], where: str) -> dict[int, tuple[int, ...]]:
    """Groups by their ids, as ASTRA-sim takes them."""
    groups: dict[int, tuple[int, ...]] = {}
    for key, ranks in given.items():
        if not GROUP_ID.fullmatch(key) or int(key) == 0:
            hint = "ASTRA-sim aborts; `0` and no name mean all ranks"
            raise AstraAbort(f"group id {key!r} must be a whole number above 0", where=where, hint=hint)
        if not isinstance(ranks, list) or set(map(type, ranks)) != {int}:
            raise ClusterError(f"group {key} must be a list of ranks", where=where)
        if len(set(ranks)) != len(ranks):
            raise ClusterError(f"group {key} names a rank twice", where=where)
        groups[int(key)] = tuple(ranks)
    return groups
