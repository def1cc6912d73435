"""`etude serve --hbm-split`: one room for embeddings and for keys and values."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.surface.cli.output import emit

if TYPE_CHECKING:
    from etude.machine import System


def show_split(
    requests: Any, cost: Any, system: "System", words: str, room: tuple[float, float], *, replicas: int, router: str,
    limits: dict[str, dict[str, float]], json: bool,
) -> int:  # fmt: skip
    """`room`: what weights leave of a replica's memory, and bytes of keys and values of a token."""
    from etude.world.serve.split import best_sequence, served_split, split_rules

    rules = split_rules(words)
    left, token_bytes = room
    link = rules.link_bytes_per_s or (system.device.host_link.read_bytes_per_s if system.device.host_link else 0.0)
    if not link:
        raise UsageError("does not describe its link to the host", where=system.device.name, hint="link=25GB/s")
    rules = replace(rules, room_bytes=rules.room_bytes or int(left), link_bytes_per_s=link)
    if rules.sequences:
        if replicas > 1:
            raise UsageError("--hbm-split sequences: only with one replica", hint="--replicas 1")
        tried = best_sequence(requests, cost, rules, token_bytes=token_bytes, limits=limits[""])
        emit(tried if json else [_row(tried)], json=json)
        return 0
    each = [replace(rules, ratios=(ratio,)) for ratio in rules.ratios] or [rules]
    found = [
        served_split(
            requests,
            cost,
            one,
            token_bytes=token_bytes,
            replicas=replicas,
            router=router,
            limits=limits[""],
            judged=len(each) == 1,
        )
        for one in each
    ]
    if json:
        emit({"ratios": found} if len(found) > 1 else found[0], json=True)
        return 0
    emit([_row(one) for one in found])
    return 0


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
