"""CacheRules: what a prompt reuses from earlier ones, where it is kept, and what is evicted first.

    --cache "blocks lru fix=0.1 host=64GB nvme=1TB@7GB/s sharded link=50GB/s"

| word | |
|---|---|
| `none`, `prefix`, `blocks`, `content` | nothing; the leading run; pieces at any place; pieces cut by their content |
| `lru`, `ttl=60s`, `belady`, `pinned=2048` | what goes first; `pinned`: never the first tokens of prompts, this many |
| `expected` | evicts what its session is expected to need latest, from the sequence of calls so far |
| `host=64GB`, `nvme=1TB@7GB/s` | lower tiers, nearest first: capacity per replica, at the system's rate or this one |
| `fix=0.1`, `fix=2ns` | for each token found at another position: the fraction read again, or a time |
| `chunk=128` | mean tokens of a piece that is cut by content |
| `sharded`, `link=50GB/s` | a piece is on one replica; the others fetch it over this link |
| `shared` | the tiers are one store for all replicas, each at the tier's rate |
| `coded=NAME` | transfers from this tier are encoded, by `--kv-codec` and `--kv-choose` |
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.grammar import LinePiece, line, nearest
from etude.machine import System
from etude.machine.tier import NODE, RANK
from etude.world.serve.rings import BELADY, EXPECTED, LRU, PINNED, TTL

MODES: Final = ("none", "prefix", "blocks", "content")
POLICIES: Final = {"lru": LRU, "ttl": TTL, "belady": BELADY, "pinned": PINNED, "expected": EXPECTED}
EXAMPLE: Final = '"prefix belady host=64GB@50GB/s"'
WORDS: Final = (*MODES, "lru", "belady", "expected", "sharded", "shared")
KEYS: Final = ("ttl=", "pinned=", "fix=", "chunk=", "link=", "coded=", "TIER=ROOM")
UNLIMITED: Final = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A tier of a cache, for one replica."""

    name: str
    bytes: int = UNLIMITED
    bytes_per_s: float = 0.0
    """0: nothing is waited for."""
    latency_ns: float = 0.0
    """Per load of one request."""
    away: bool = False
    """Whether it is on no node, as the system says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    mode: str = "none"
    policy: str = "lru"
    ttl_ns: int = 0
    pinned_tokens: int = 0
    fix_share: float = 0.0
    fix_ns: float = 0.0
    chunk: int = 128
    tiers: tuple[Room, ...] = ()
    """Tiers below the blocks of the device. Without one, `blocks` and `content` keep all pieces, and loads take no
    time."""
    sharded: bool = False
    link_bytes_per_s: float = 0.0
    shared: bool = False
    """Whether all replicas share the tiers."""
    coded: str = ""
    """Tier whose transfers are encoded."""

    @property
    def stores(self) -> bool:
        """Whether anything is kept besides the blocks of the device."""
        return self.mode in ("blocks", "content") or (self.mode == "prefix" and bool(self.tiers))


def cache_rules(text: str) -> CacheRules:
    """Parses the words of `--cache`."""
    found: dict[str, Any] = {}
    tiers: list[Room] = []
    for word in line(text, "--cache", EXAMPLE).words() if text.strip() else ():
        key, value = word.cut("=")
        more = _plain_word(word) if value is None else _figure(key.text, value)
        if "tier" in more:
            tiers.append(more.pop("tier"))
        if twice := sorted(set(more) & set(found)):
            raise word.wrong(f"`{word.text}` repeats `{twice[0]}`")
        found |= more
    if "mode" not in found:
        found["mode"] = "prefix" if found or tiers else "none"
    made = CacheRules(**found, tiers=tuple(tiers))
    names = [tier.name for tier in tiers]
    if len(set(names)) < len(names):
        raise UsageError(f"--cache: two tiers have the same name: {', '.join(names)}")
    if made.mode == "none" and (len(found) > 1 or tiers):
        raise UsageError("--cache: `none` cannot be combined with other words", hint=f"for example {EXAMPLE}")
    if made.mode == "prefix" and (made.fix_share or made.fix_ns):
        raise UsageError("--cache: `fix` applies only to pieces found at another place", hint="blocks or content")
    if made.sharded and not made.link_bytes_per_s:
        raise UsageError("--cache: `sharded` needs a link between replicas", hint="link=50GB/s")
    if made.sharded and not made.stores:
        raise UsageError("--cache: `sharded` needs a tier", hint="a tier: sharded host=64GB@50GB/s")
    if made.shared and (made.sharded or not made.tiers):
        hint = "prefix remote=1TB@10Gb/s shared"
        raise UsageError("--cache: `shared` needs tiers, and cannot be combined with `sharded`", hint=hint)
    if made.coded and made.coded not in names:
        raise UsageError(f"--cache: `coded={made.coded}` does not name a tier", hint="remote=1TB@10Gb/s coded=remote")
    return made


def _plain_word(word: LinePiece) -> dict[str, Any]:
    if word.text not in WORDS:
        raise word.wrong(f"unknown word `{word.text}`", nearest(word.text, WORDS + KEYS))
    if word.text in MODES:
        return {"mode": word.text}
    return {word.text: True} if word.text in ("sharded", "shared") else {"policy": word.text}


def _figure(key: str, value: LinePiece) -> dict[str, Any]:
    if key == "ttl":
        return {"policy": "ttl", "ttl_ns": value.time_ns(zero=True)}
    if key == "pinned":
        return {"policy": "pinned", "pinned_tokens": value.count(zero=True)}
    if key == "coded":
        return {"coded": value.text}
    if key == "chunk":
        value.number(8, 1 << 16)
        return {"chunk": value.count()}
    if key == "link":
        return {"link_bytes_per_s": float(value.bytes_per_s())}
    if key == "fix":
        if value.text[-1:].isalpha():
            return {"fix_ns": float(value.time_ns(zero=True))}
        return {"fix_share": value.fraction(zero=True)}
    room, rate = value.cut("@")
    usual = f"leave `@{rate.text}` out for the rate of the system's tier" if rate is not None else ""
    per_s = -1.0 if rate is None else float(rate.positive("bandwidth", usual))
    return {"tier": Room(name=key, bytes=room.size_bytes(zero=True), bytes_per_s=per_s)}


def on_system(rules: CacheRules, system: System, piece_bytes: float) -> CacheRules:
    """The same rules with the rates and latencies of a system's tiers where the words name none. A rate is that of
    reads of one piece each, with as many in flight as the tier has slots."""
    known = {tier.name: tier for tier in system.tiers}
    tiers = []
    for room in rules.tiers:
        if room.name in known and known[room.name].per not in (RANK, NODE, system.levels[0].name):
            room = replace(room, away=True)
        if room.bytes_per_s >= 0:
            tiers.append(room)
            continue
        if room.name not in known:
            hint = f"{room.name}=64GB@50GB/s" + (f"; it has {', '.join(known)}" if known else "")
            raise UsageError(f"--cache: `{system.name}` has no tier `{room.name}`", hint=hint)
        tier = known[room.name]
        if tier.capacity_bytes and room.bytes > tier.capacity_bytes:
            raise UsageError(f"--cache: `{room.name}` has room for {tier.capacity_bytes:,} bytes", where=system.name)
        tiers.append(replace(room, bytes_per_s=tier.rate(piece_bytes), latency_ns=tier.latency_ns))
    return replace(rules, tiers=tuple(tiers))
