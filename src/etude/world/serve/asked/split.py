"""What is asked of a recommender whose replicas keep embeddings and keys and values in one room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import figure, part, text
from etude.base.outputs import Printed
from etude.machine import open_system
from etude.world.serve.asked.service import CostInput, ModelService, Replicas, plain_replicas
from etude.world.serve.asked.stream import FileInput, RequestStream, file_stream_of
from etude.world.serve.limits import parse_limits
from etude.world.serve.split.serving import ROUTERS, best_sequence, served_split
from etude.world.serve.split.words import SplitRules, split_rules

PANEL: Final = "Memory and replicas"


@dataclass(frozen=True, kw_only=True)
class ServeSplit(FileInput, CostInput):
    """A recommender whose replicas keep embeddings and keys and values in one memory

    etude serve split llama3-8b --requests recommend:users=40,items=200 --rate 20 \\
        --split "0.1..0.9 room=4GB link=25GB/s" --system dgx-a100
    etude serve split llama3-8b --requests r.csv --system dgx-a100 \\
        --split "adaptive link=25GB/s" --slo latency=1s
    """

    split: str = figure(
        "text",
        "fraction of the memory for embeddings, the rest being for keys and values: `0.3`, `0.1..0.9`, "
        "`adaptive`; with `room=4GB`, `link=25GB/s`",
        "adaptive",
        names=("--hbm-split",),
        like="0.3 room=4GB",
        panel=PANEL,
    )
    replicas: int = figure("count", "copies of the model", 1, panel=PANEL)
    router: str = figure("text", "turn, least, session, residency", "least", like="turn", panel=PANEL)
    slo: str = text("limits of goodput: `ttft=50ms,latency=1s`", like="latency=1s", panel="Requests")
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitServing:
    replicas: Replicas
    stream: RequestStream
    rules: SplitRules
    router: Mapping[str, Any]
    """Of `served_split`: the router and the number of replicas."""

    def run(self) -> SplitServed:
        made, requests = self.replicas.open(), self.stream.one()
        rules, cost = self._on_device(made), made.placed.cost
        how: dict[str, Any] = {"token_bytes": made.token_bytes, "limits": made.limits[""]}
        if rules.sequences:
            return SplitServed([best_sequence(requests, cost, rules, **how)], made.notes)
        each = [replace(rules, ratios=(ratio,)) for ratio in rules.ratios] or [rules]
        how |= {"judged": len(each) == 1, **self.router}
        return SplitServed([served_split(requests, cost, one, **how) for one in each], made.notes)

    def _on_device(self, made: ModelService) -> SplitRules:
        """With the room that weights leave, and the device's own link, where the words name none."""
        device = open_system(self.replicas.system).device
        link = self.rules.link_bytes_per_s or (device.host_link.read_bytes_per_s if device.host_link else 0.0)
        if not link:
            raise UsageError("does not describe its link to the host", where=device.name, hint="link=25GB/s")
        left = made.placed.blocks * made.rules.block_size * made.token_bytes
        return replace(self.rules, room_bytes=self.rules.room_bytes or int(left), link_bytes_per_s=link)


@dataclass(frozen=True, slots=True)
class SplitServed:
    rows: list[dict[str, Any]]
    """A row for each ratio."""
    notes: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """What `etude serve split --json` prints."""
        return {"ratios": self.rows} if len(self.rows) > 1 else self.rows[0]


def readable(found: SplitServed) -> list[dict[str, Any]]:
    """A row for each ratio."""
    return [_row(one) for one in found.rows]


def _row(one: dict[str, Any]) -> dict[str, Any]:
    embeddings, keys = (one[f"{kind}_hits"] + one[f"{kind}_misses"] for kind in ("embedding", "kv"))
    return {
        "ratio": round(one["ratio"], 3),
        "latency p50 ms": round(one["latency_s"]["p50"] * 1e3, 2),
        "p99 ms": round(one["latency_s"]["p99"] * 1e3, 2),
        "within": f"{one['within_limits']:.1%}",
        "embeddings found": f"{one['embedding_hits'] / max(embeddings, 1):.1%}",
        "keys found": f"{one['kv_hits'] / max(keys, 1):.1%}",
        "loaded GB": round(one["refill_bytes"] / 1e9, 3),
        "over time": " ".join(f"{ratio:.2f}" for ratio in one["ratios"][:12]),
    }


def split_serving(asked: ServeSplit) -> SplitServing:
    """Reads what these replicas have: a search of all sequences has one of them, and no router."""
    rules, limits = split_rules(asked.split), parse_limits(asked.slo)
    if set(limits) != {""}:
        raise UsageError("--slo: a split has no tiers", hint="--slo ttft=50ms,latency=1s")
    router: dict[str, Any] = {} if rules.sequences else {"router": asked.router, "replicas": asked.replicas}
    if router and router["router"] not in ROUTERS:
        raise UsageError(f"unknown router `{router['router']}`", where="--router", hint=f"known: {', '.join(ROUTERS)}")
    replicas = plain_replicas(asked, count=router.get("replicas", 1), limits=limits)
    return SplitServing(replicas=replicas, stream=file_stream_of(asked), rules=rules, router=router)
