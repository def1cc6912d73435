"""ASTRA-sim's analytical backends, re-implemented bit for bit: `run` a `Workload` on a network and a system."""

from etude.astra.abort import AstraAbort
from etude.astra.config import (
    Network,
    RemoteMemory,
    SystemConfig,
    read_groups,
    read_network,
    read_remote_memory,
    read_system,
)
from etude.astra.run import AstraResult, run
from etude.astra.traces import read_custom, read_workload
from etude.astra.workload import Workload

__all__ = [
    "AstraAbort",
    "AstraResult",
    "Network",
    "RemoteMemory",
    "SystemConfig",
    "Workload",
    "read_custom",
    "read_groups",
    "read_network",
    "read_remote_memory",
    "read_system",
    "read_workload",
    "run",
]
