"""What is asked of requests that are served one at a time, with keys and values below the device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from etude.base.figures import figure, part, switch
from etude.base.outputs import Printed
from etude.base.parameters import replaces
from etude.base.units import format_bytes
from etude.machine import open_system
from etude.world.serve.asked.service import CostInput, Replicas, plain_replicas
from etude.world.serve.asked.stream import RequestStream, taken_of
from etude.world.serve.offload.paths import offloaded

PANEL: Final = "Memory below the device"
REQUESTS: Final = "Requests"


class KvPath(StrEnum):
    """The way of keys and values to the device."""

    CACHE = "cache"
    DIRECT = "direct"
    DUAL = "dual"


@dataclass(frozen=True, kw_only=True)
class ServeOffload(CostInput):
    """One request at a time, with keys and values in the host's memory and on its disk

    etude serve offload llama3-8b --prompt 32768 --output 128 --path dual \\
        --host-memory 4GB --system h200-server
    etude serve offload llama3-8b --requests r.csv --system h200-server

    The system has the tiers `page_cache` and `disk`. Experts in a host's memory are a matter of `etude serve MODEL
    --offload "experts path=auto host=xeon-8480"`.
    """

    path: KvPath = figure(
        "choice",
        "through the page cache, from the disk itself, or the cheaper of both for each block",
        KvPath.DUAL,
        panel=PANEL,
    )
    host_memory_bytes: int = figure("bytes", "host memory for keys and values", 8_000_000_000, panel=PANEL)
    requests: str = figure("path", "file of requests; without one, one request", "", like="r.csv", panel=REQUESTS)
    first: int = figure("count", "use only the first requests, this many; 0: all", 0, needs="requests", panel=REQUESTS)
    sort: bool = switch(
        "sort the rows of the file by time; without it, unsorted files are refused", needs="requests", panel=REQUESTS
    )
    prompt: int = figure("count", "prompt tokens of the request", 1024, panel=REQUESTS)
    output_tokens: int = figure("count", "output tokens of the request", 128, key="output", panel=REQUESTS)
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadServing:
    replicas: Replicas
    stream: RequestStream
    path: str
    memory_bytes: int

    def run(self) -> OffloadServed:
        made = self.replicas.open()
        found = offloaded(
            self.stream.one(), made.placed.cost, open_system(self.replicas.system), path=self.path,
            memory_bytes=self.memory_bytes, layers=made.network.layers, token_bytes=made.token_bytes,
        )  # fmt: skip
        return OffloadServed(found, made.notes)


@dataclass(frozen=True, slots=True)
class OffloadServed:
    found: dict[str, Any]
    notes: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """What `etude serve offload --json` prints."""
        return self.found


def readable(served: OffloadServed) -> dict[str, str]:
    """Times, bytes and blocks of all requests."""
    found = served.found
    return {
        "prompt": f"{found['prefill_s']:.4g} s",
        "tokens out": f"{found['decode_s']:.4g} s, {found['tpot_s']:.4g} s each",
        "computing, loading": f"{found['compute_s']:.4g} s, {found['io_s']:.4g} s",
        "disk": f"{format_bytes(round(found['disk_read_bytes']))} read, "
        f"{format_bytes(round(found['disk_written_bytes']))} written, {found['disk_use']:.1%} of its bandwidth",
        "blocks": f"{found['hits']:,.0f} found in memory, {found['reads']:,.0f} read from the disk",
    }


def offload_serving(asked: ServeOffload) -> OffloadServing:
    """Reads what these requests have: those of a file, or one."""
    replicas, file = plain_replicas(asked), asked.requests
    if file:
        replaces(asked, "requests", "prompt", "output")
        stream = RequestStream(path=file, options=taken_of(asked, file))  # type: ignore[arg-type]
    else:
        one = {"count": 1, "prompt": asked.prompt, "output": asked.output_tokens}
        stream = RequestStream(rates=(1.0,), options=one)
    return OffloadServing(replicas=replicas, stream=stream, path=str(asked.path), memory_bytes=asked.host_memory_bytes)
