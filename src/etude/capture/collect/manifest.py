"""Description of a rank's files: enough to read them without the machine that made them, and nothing that identifies
it."""

import multiprocessing
import os
import platform
import sys
from dataclasses import dataclass, field
from typing import Any

from etude.capture.collect import features
from etude.capture.collect.options import CollectOptions

FORMAT = 1
FIRST = "ETUDE_COLLECT_FIRST"
"""The process that was started as a rank, or by itself, and its RANK: known to all that it starts."""


@dataclass(slots=True, kw_only=True)
class World:
    """The position of this process. Taken while recording: at exit the process groups may be gone."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    backend: str = ""
    groups: list[dict[str, Any]] = field(default_factory=list)
    known: bool = False
    """From `torch.distributed`, not from the environment."""
    process: str = ""
    """Name of the process, if it is not a rank of the job: a data loader's worker, for example."""

    @property
    def who(self) -> str:
        """As in the names of files."""
        return f"process{os.getpid()}" if self.process else f"rank{self.rank}"


def world(torch: Any) -> World:
    """From `torch.distributed`, else from the variables that launchers set, else one process."""
    found = World(rank=_number("RANK", 0), world_size=_number("WORLD_SIZE", 1), local_rank=_number("LOCAL_RANK", 0))
    dist = features.distributed(torch)
    if dist is not None:
        found.rank, found.world_size = dist.get_rank(), dist.get_world_size()
        found.backend = str(dist.get_backend())
        found.groups = process_groups(dist)
        found.known = True
    elif not started_as_rank():
        found.process = process_name()
    return found


def started_as_rank() -> bool:
    """Not by a process that records, with nothing but the environment of that to say who it is. Such a one becomes a
    rank when it joins `torch.distributed`."""
    pid, _, rank = os.environ.get(FIRST, "").partition(":")
    return pid in ("", str(os.getpid())) or rank != os.environ.get("RANK", "")


def process_name() -> str:
    name = multiprocessing.current_process().name
    return os.path.basename(sys.argv[0] or "python") if name == "MainProcess" and sys.argv else name


def _number(variable: str, otherwise: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else otherwise


def process_groups(dist: Any) -> list[dict[str, Any]]:
    """The groups that this rank is in, members as global ranks."""
    c10d = dist.distributed_c10d
    found = []
    for group, (backend, _) in list(c10d._world.pg_map.items()):
        try:
            ranks = [int(rank) for rank in dist.get_process_group_ranks(group)]
        except (KeyError, RuntimeError, ValueError):
            continue
        found.append(
            {
                "pg_name": str(getattr(group, "group_name", "")),
                "pg_desc": str(getattr(group, "group_desc", "")),
                "backend_config": str(backend),
                "ranks": ranks,
                "group_size": len(ranks),
            }
        )
    return found


def manifest(torch: Any, options: CollectOptions, world: World) -> dict[str, Any]:
    """Everything except what the recorder adds: files, steps, whether it is partial."""
    recorded = options.to_dict()
    plan = recorded.pop("plan")
    for key in ("force", "name", "steps", "warmup"):
        recorded.pop(key)
    return {
        "format": FORMAT,
        "name": options.name,
        "rank": None if world.process else world.rank,
        "process": {"name": world.process, "pid": os.getpid()} if world.process else None,
        "world_size": world.world_size,
        "local_rank": world.local_rank,
        "backend": world.backend,
        "process_groups": world.groups,
        "plan": plan,
        "versions": versions(torch),
        "devices": devices(torch),
        "options": recorded,
    }


def versions(torch: Any) -> dict[str, str]:
    from etude import __version__

    found = {
        "etude": __version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": str(torch.__version__),
        "cuda": getattr(torch.version, "cuda", None),
        "hip": getattr(torch.version, "hip", None),
        "nccl": _nccl(torch),
        "system": f"{platform.system()} {platform.machine()}",
    }
    return {name: str(version) for name, version in found.items() if version}


def _nccl(torch: Any) -> str | None:
    try:
        version = torch.cuda.nccl.version()
    except (AttributeError, RuntimeError, ImportError):
        return None
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def devices(torch: Any) -> list[dict[str, Any]]:
    """The processor, and this rank's current GPU, if it has used one."""
    found: list[dict[str, Any]] = [{"type": "cpu", "cores": os.cpu_count(), "threads": torch.get_num_threads()}]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        index = torch.cuda.current_device()
        figures = torch.cuda.get_device_properties(index)
        found.append(
            {
                "type": "cuda",
                "index": index,
                "name": figures.name,
                "memory_bytes": figures.total_memory,
                "multiprocessors": figures.multi_processor_count,
                "capability": f"{figures.major}.{figures.minor}",
            }
        )
    return found
