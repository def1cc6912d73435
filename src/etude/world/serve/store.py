"""What a cache keeps besides the blocks of a device, tier by tier, in compiled code.

A piece is in one tier of a replica. A request that enters copies what it finds into its own blocks and waits for the
loads; when its prompt has been read, all of its pieces are put into the first tier as the newest, the front last. What
does not fit there goes to the next tier, and from the last tier it is dropped.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64
from etude.kernels.compile import kernel
from etude.world.serve.cache import POLICIES, UNLIMITED, CacheRules, Room
from etude.world.serve.pieces import ANYWHERE, CachePieces, pieces_of
from etude.world.serve.requests import Requests
from etude.world.serve.reuse import after_ns, answered, called
from etude.world.serve.rings import (
    ABSENT,
    EXPECTED,
    Ring,
    empty_ring,
    expect,
    expired,
    goes_first,
    no_ring,
    put_newest,
    ring_of,
    unlink,
)
from etude.world.serve.state import LEARNT, KvWire
from etude.world.serve.wire import NO_WIRE

MOST: Final = 1 << 28
SHARED: Final = 2
"""Limit of replicas times pieces."""


class Store(NamedTuple):
    tiers: int
    """0: there is none."""
    leading: int
    """Whether only a prefix of a prompt is found."""
    sharded: int
    """1: a piece is on one replica; SHARED: all replicas share the tiers."""
    fix_share: float
    fix_ns: float
    pieces: CachePieces
    ring: Ring
    where: NDArray[np.int8]
    """Tier of a piece: (replica, piece), or ABSENT."""
    used: I64
    """Tokens: (replica, tier)."""
    room: I64
    token_ns: F64
    """Per loaded token, by tier; the last is the link between replicas."""
    latency_ns: F64
    moved: I64
    """Tokens found and loaded by tier, and over the link; pieces dropped: (replica, tiers + 2)."""
    coded: int
    """Tier whose loads are encoded, or ABSENT."""
    wire: KvWire
    """The codecs, and how one is chosen."""
    away: NDArray[np.uint8]
    """Whether a tier is on no node, and stays when a replica is lost: (tier)."""
    gone: NDArray[np.uint8]
    """Replicas that are lost: they keep no pieces, and none is found there: (replica)."""
    link: F64
    """For each replica's loads of that tier: observed ns per byte; bytes and ns of those of the next pass; the same of
    the current pass; total bytes, and ns with coding: (replica, 7)."""


def store_of(
    requests: Requests, rules: CacheRules, replicas: int, block: int, token_bytes: float = 0.0, wire: KvWire = NO_WIRE
) -> Store:
    """Empty, with the capacities and rates of the rules. `token_bytes` are the bytes of keys and values of a token on
    all ranks of a replica; 0: capacities are in tokens, and loads take no time."""
    pieces = pieces_of(requests, rules, block)
    if replicas * len(pieces.size) > MOST:
        raise UsageError(f"{len(pieces.size):,} pieces on {replicas} replicas are too many", hint="--first, or fewer")
    tiers = rules.tiers or (Room(name="all"),)
    each = token_bytes or 1.0
    room = [UNLIMITED if tier.bytes == UNLIMITED else int(tier.bytes // each) for tier in tiers]
    rates = [tier.bytes_per_s for tier in tiers] + [rules.link_bytes_per_s]
    token_ns = [token_bytes / rate * 1e9 if rate > 0 else 0.0 for rate in rates]
    count = len(pieces.size)
    ring = ring_of(replicas, count, len(tiers), pieces.pinned, POLICIES[rules.policy], rules.ttl_ns)
    coded = [tier.name for tier in tiers].index(rules.coded) if rules.coded else ABSENT
    return Store(
        len(tiers), int(rules.mode == "prefix"), SHARED if rules.shared else int(rules.sharded), rules.fix_share,
        rules.fix_ns, pieces, ring,
        np.full((replicas, count), ABSENT, np.int8), np.zeros((replicas, len(tiers)), np.int64),
        np.array(room, np.int64), np.array(token_ns), np.array([tier.latency_ns for tier in tiers] + [0.0]),
        np.zeros((replicas, len(tiers) + 2), np.int64), coded, wire,
        np.array([rules.shared or tier.away for tier in tiers], np.uint8), np.zeros(replicas, np.uint8),
        np.zeros((replicas, 7)),
    )  # fmt: skip


def no_store() -> Store:
    none, bytes_ = np.zeros(1, np.int64), np.zeros(1, np.uint8)
    table = np.zeros((1, 1), np.int64)
    return Store(
        0, 0, 0, 0.0, 0.0, CachePieces(none, none, none, none, none, none, bytes_), no_ring(),
        np.zeros((1, 1), np.int8), table, none, np.zeros(1), np.zeros(1), table, ABSENT, NO_WIRE, bytes_,
        bytes_, np.zeros((1, 7)),
    )  # fmt: skip


def drop_tiers(store: Store, i: int) -> None:
    """A replica loses what it has in the tiers of its node; `link` keeps what was sent."""
    ends = len(store.pieces.size)
    for tier in np.flatnonzero(store.away == 0).tolist():
        there = store.where[i] == tier
        store.moved[i, -1] += there.sum()
        store.where[i, there] = ABSENT
        store.used[i, tier] = 0
        empty_ring(store.ring, i, ends + tier)
    store.link[i, :5] = 0.0


@kernel(allocates=False)
def _home(store, i, one, replicas):
    if store.sharded == SHARED:
        return 0
    lies = store.pieces.home[one]
    return lies % replicas if store.sharded and lies != ANYWHERE else i


@kernel(allocates=False)
def _coded_ns(wire, codec, raw, ns_per_byte):
    """Encoding, the link and decoding, one after the other."""
    part, encode, decode, fixed = wire.codec[codec, 0], wire.codec[codec, 1], wire.codec[codec, 2], wire.codec[codec, 3]
    return 2.0 * fixed + raw * (encode + decode + part * ns_per_byte)


@kernel(allocates=False)
def _codec_for(store, i, raw, ns_per_byte):
    """Codec for loads of `raw` bytes: as given, or the fastest at the actual or the observed rate of the link."""
    if store.wire.choice >= 0:
        return store.wire.choice
    rate = store.link[i, 0] if store.wire.choice == LEARNT else ns_per_byte
    best, least = 0, np.inf
    for codec in range(len(store.wire.codec)):
        takes = _coded_ns(store.wire, codec, raw, rate)
        if takes < least:
            best, least = codec, takes
    return best


@kernel(allocates=False)
def _load_coded(store, i, tokens, note):
    """ns of the loads of the encoded tier. The loads of a request are one transfer."""
    raw = tokens * store.wire.token_bytes
    ns_per_byte = store.token_ns[store.coded] / store.wire.token_bytes
    codec = _codec_for(store, i, raw, ns_per_byte)
    if note:
        sent = raw * store.wire.codec[codec, 0]
        store.link[i, 1] += sent
        store.link[i, 2] += sent * ns_per_byte
        store.link[i, 5] += sent
        store.link[i, 6] += _coded_ns(store.wire, codec, raw, ns_per_byte)
    return _coded_ns(store.wire, codec, raw, ns_per_byte)


@kernel(allocates=False)
def loads_begin(store, i):
    """The next pass starts, and with it the loads that it waits for."""
    store.link[i, 3], store.link[i, 4] = store.link[i, 1], store.link[i, 2]
    store.link[i, 1], store.link[i, 2] = 0.0, 0.0


@kernel(allocates=False)
def loads_seen(store, i):
    """Updates the observed rate when the pass is over."""
    link = store.link[i]
    if link[3] > 0.0:
        seen = link[4] / link[3]
        link[0] = seen if link[0] == 0.0 else link[0] + store.wire.weight * (seen - link[0])
        link[3], link[4] = 0.0, 0.0


@kernel(allocates=False)
def find(store, i, r, first, prompt, now, note):
    """For tokens from `first` on: how many are found; how many of these are on this replica; how many are read again;
    the time of the loads; and the pairs of a query and a key that are saved beyond those of a prefix of as many tokens.
    The last token of a prompt is never found. With `note` the transfers are counted."""
    found, here, load_ns, places, waited, coded = 0, 0, 0.0, 0.0, 0, 0
    tiers, replicas = store.tiers, len(store.where)
    for k in range(store.pieces.start[r], store.pieces.start[r + 1]):
        end = min(store.pieces.ends[k], prompt - 1)
        if end <= first:
            continue
        one = store.pieces.ids[k]
        j = _home(store, i, one, replicas)
        tier = store.where[j, one]
        if tier == ABSENT or (store.gone[j] and store.sharded != SHARED) or expired(store.ring, j, one, now):
            if store.leading:
                break
            continue
        begin = max(store.pieces.ends[k - 1] if k > store.pieces.start[r] else 0, first)
        tokens = min(end - begin, store.pieces.size[one])
        found += tokens
        away = j != i and store.sharded != SHARED
        here += tokens if j == i else 0
        places += tokens * (begin + 1) + tokens * (tokens - 1) / 2
        load_ns += tokens * store.token_ns[tiers] if away else 0.0
        if tier == store.coded:
            coded += tokens
        else:
            load_ns += tokens * store.token_ns[tier]
        if not waited & (1 << tier):
            load_ns += store.latency_ns[tier]
            waited |= 1 << tier
        if note:
            store.moved[i, tier] += tokens
            store.moved[i, tiers] += tokens if away else 0
    if coded:
        load_ns += _load_coded(store, i, coded, note)
    again = np.int64(np.ceil(found * store.fix_share))
    kept = found - again
    less = 0.0
    if kept and not store.leading:
        less = places * kept / found - (kept * (first + 1) + kept * (kept - 1) / 2)
    return found, here, again, np.int64(np.ceil(load_ns + found * store.fix_ns)), np.int64(max(less, 0.0))


@kernel(allocates=False)
def put(store, reuse, i, r, session, kind, now):
    """All pieces of a prompt that has been read become the newest, the front last."""
    ends, replicas, later = len(store.pieces.size), len(store.where), np.int64(0)
    if store.ring.policy == EXPECTED:
        later = after_ns(reuse, kind)
    k = store.pieces.start[r + 1] - 1
    while k >= store.pieces.start[r]:
        one = store.pieces.ids[k]
        j = _home(store, i, one, replicas)
        if store.gone[j] and store.sharded != SHARED:
            k -= 1
            continue
        tier = store.where[j, one]
        if tier != ABSENT:
            unlink(store.ring, j, one)
            store.used[j, tier] -= store.pieces.size[one]
        store.where[j, one] = 0
        put_newest(store.ring, j, one, ends)
        store.used[j, 0] += store.pieces.size[one]
        if store.ring.policy == EXPECTED:
            expect(store.ring, j, one, session, now, later)
        store.ring.used_at[j, one] = now
        store.ring.soon[one] = store.pieces.next_use[k]
        k -= 1
    for j in range(replicas):
        if j == i or store.sharded:
            _shrink(store, j, now)


@kernel(allocates=False)
def _shrink(store, j, now):
    ends = len(store.pieces.size)
    for tier in range(store.tiers):
        while store.used[j, tier] > store.room[tier]:
            one = goes_first(store.ring, j, ends + tier, now)
            unlink(store.ring, j, one)
            store.used[j, tier] -= store.pieces.size[one]
            if tier + 1 < store.tiers:
                store.where[j, one] = tier + 1
                put_newest(store.ring, j, one, ends + tier + 1)
                store.used[j, tier + 1] += store.pieces.size[one]
            else:
                store.where[j, one] = ABSENT
                store.moved[j, store.tiers + 1] += 1


@kernel
def hits(store, reuse, prompt, session, arrival_ns):
    """Tokens that each prompt finds if one replica answers requests one at a time, with no cache before the store."""
    found = np.zeros(len(prompt), np.int64)
    for r in range(len(prompt)):
        called(reuse, session[r], arrival_ns[r])
        found[r] = find(store, 0, r, 0, prompt[r], arrival_ns[r], 1)[0]
        answered(reuse, session[r], 0, arrival_ns[r])
        put(store, reuse, 0, r, session[r], 0, arrival_ns[r])
    return found
