"""Streams of requests on nodes of a pool, each with its own replicas, served as by `etude serve`.

streams:
  - {name: chat, nodes: serving, model: llama3-70b, system: dgx-h100, tp: 4, requests: chat.csv,
     slo: {ttft: 1s, tpot: 50ms}}                # or rate: 4, count: 500, prompt: 1024, output: 128
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from etude.base.errors import UsageError
from etude.base.figures import figure, read, text, usage_errors
from etude.base.units import parse_time
from etude.world.fleet.sharing.cluster import Cluster

if TYPE_CHECKING:
    from etude.world.serve import Served

LIMITS: Final = {"ttft": "ttft_s", "tpot": "tpot_s", "latency": "latency_s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStream:
    model: str = figure("text", "model that is served")
    system: str = figure("text", "system of its nodes")
    nodes: str = figure("text", "group of nodes of its replicas")
    name: str = figure("text", "name that others refer to", "stream")
    tp: int = figure("count", "devices of a replica", 1)
    replicas: int = figure("count", "0: as many as fit the nodes", 0)
    requests: str = text("file of requests; else they are drawn")
    first: int = figure("count", "only the first requests, this many; 0: all", 0)
    rate: float = figure("number", "requests per second", 0.0)
    count: int = figure("count", "number of generated requests", 500)
    prompt: int = figure("count", "prompt tokens of generated requests", 1024)
    output: int = figure("count", "tokens out", 128)
    burst: float = figure("number", "variation of the gaps between them: 1 is Poisson", 1.0, zero=True)
    diurnal: str = text("swing of the rate: 0.8@24h")
    router: str = figure("text", "as --router of `etude serve`", "least")
    slo: Any = figure("one", "{ttft: 1s, tpot: 50ms, latency: 60s}", None)

    @property
    def limits(self) -> dict[str, dict[str, float]]:
        """Limits as `etude serve` takes them. Raises UsageError."""
        if not self.slo:
            return {}
        if not isinstance(self.slo, dict) or (unknown := [key for key in self.slo if key not in LIMITS]):
            shown = self.slo if not isinstance(self.slo, dict) else unknown[0]
            raise UsageError(f"slo: `{shown}`", where=self.name, hint="slo: {ttft: 1s, tpot: 50ms}")
        return {"": {LIMITS[key]: parse_time(value) / 1e9 for key, value in self.slo.items()}}


def read_streams(given: list[dict[str, Any]], cluster: Cluster, where: str) -> list[PoolStream]:
    found = []
    for number, one in enumerate(given):
        at = f"{where}: streams[{number}]"
        with usage_errors():
            stream = read(PoolStream, one, at)
        devices = int(cluster.gpus[cluster.nodes_of(stream.nodes)].sum())
        fit = devices // stream.tp
        if not fit or stream.replicas > fit:
            raise UsageError(
                f"{devices} devices of `{stream.nodes}` have room for {fit} replicas of {stream.tp}", where=at
            )
        if not stream.requests and not stream.rate:
            raise UsageError("no requests are given", where=at, hint="requests: FILE, or rate: 4")
        stream = replace(stream, replicas=stream.replicas or fit)
        if stream.requests and not Path(stream.requests).is_absolute() and ":" not in stream.requests:
            stream = replace(stream, requests=str(Path(where).parent / stream.requests))
        found.append(stream)
    if len({stream.name for stream in found}) < len(found):
        raise UsageError("two streams have the same name", where=where)
    if len({stream.nodes for stream in found}) < len(found):
        raise UsageError("two streams have the same nodes", where=where, hint="use separate nodes")
    return found


@dataclass(frozen=True, slots=True, eq=False)
class PreparedStream:
    """A stream before it is served."""

    stream: PoolStream
    groups: list[Any]
    engine: Any
    options: dict[str, Any]
    drawn: Any
    token_bytes: float
    """Bytes of keys and values of a token on a rank."""

    def serve(self, **more: Any) -> Served:
        from etude.world.serve import serve

        return serve(self.drawn, self.engine, self.groups, **(self.options | more))


def placed(stream: PoolStream, *, seed: int = 0) -> PreparedStream:
    """Prepares a stream as `etude serve MODEL --system --tp --replicas --requests --slo` does."""
    from etude.make.generate.model import open_model
    from etude.world.serve import Engine, request_stream
    from etude.world.serve.pools import Between, between_options, deployed_pools, pools_of

    model, between, engine = open_model(stream.model), Between(), Engine()
    pools = pools_of(between, replicas=stream.replicas, tp=stream.tp, ep=1)
    groups, one = deployed_pools(model, pools, engine, system=stream.system)
    token_bytes = one.token_bytes * stream.tp
    tpot = stream.limits.get("", {}).get("tpot_s", 0.0)
    options = between_options(between, token_bytes) | {
        "tpot_ns": tpot * 1e9,
        "router": stream.router,
        "caching": one.caching,
        "token_bytes": token_bytes,
        "seed": seed,
        "lora": one.lora,
    }
    drawn = request_stream(
        stream.requests or None, first=stream.first, rate_per_s=stream.rate, count=stream.count, prompt=stream.prompt,
        output=stream.output, cv=stream.burst, diurnal=stream.diurnal, seed=seed,
    )  # fmt: skip
    return PreparedStream(stream, groups, engine, options, drawn, one.token_bytes)


def serve_streams(streams: list[PoolStream], *, seed: int = 0) -> dict[str, dict[str, Any]]:
    """The record of each stream, served on its nodes alone."""
    from etude.world.serve import summary

    return {one.name: summary(placed(one, seed=seed).serve(), limits=one.limits) for one in streams}
