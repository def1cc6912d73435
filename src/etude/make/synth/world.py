"""Who is who in a job of another size than the one that was learned.

More ranks are copies of the whole, put in along the data-parallel axis of the numbering, or in sequence where
there is none. Groups that grow join their members of all copies, the others stay within a copy. Fewer ranks are the
first members of the growing groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.make.synth.learned import Template
from etude.model.job import Groups


def _flat(runs: Sequence[tuple[int, int]]) -> I64:
    return np.repeat(np.array([v for _, v in runs], np.int64), [t for t, _ in runs])


def _members(runs: Sequence[tuple[int, int, int]]) -> I64:
    parts = [first + stride * np.arange(count, dtype=np.int64) for first, stride, count in runs]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


class LearnedWorld:
    """Who is who in a job of another size."""

    def __init__(self, template: Template, ranks: int) -> None:
        self.template = template
        members = [_members(g) for g in template.groups]
        role_of = _flat(template.role_of)
        slots, peers = _by_role(template, template.group_of, "groups"), _by_role(template, template.peer_of, "peers")
        self.grows = set(template.grows)
        self.factor = ranks / template.ranks
        if ranks >= template.ranks:
            self._grow(ranks, members, role_of, slots, peers)
        else:
            self._cut(ranks, members, role_of, slots, peers)

    def _grow(self, ranks: int, members: list[I64], role_of: I64, slots: list[I64], peers: list[I64]) -> None:
        t = self.template
        copies, rest = divmod(ranks, t.ranks)
        if rest:
            raise UsageError(f"{ranks} ranks are not a multiple of {t.ranks}", hint=f"--ranks {(copies + 1) * t.ranks}")
        at = self._places(copies)
        self.role_of = np.empty(ranks, np.int64)
        self.role_of[at.ravel()] = np.tile(role_of, copies)
        entries: list[I64] = []
        number = np.zeros((copies, len(members)), np.int64)
        for g, m in enumerate(members):
            if g in self.grows:
                number[:, g] = len(entries)
                entries.append(at[:, m].ravel())
            else:
                for c in range(copies):
                    number[c, g] = len(entries)
                    entries.append(at[c, m])
        self._bind(entries)
        self.group_of, self.peer_of = [], []
        for role, (table, far) in enumerate(zip(slots, peers, strict=True)):
            own = np.flatnonzero(role_of == role)
            order = np.argsort(at[:, own].ravel())
            self.group_of.append(np.concatenate([number[c][table] for c in range(copies)])[order])
            self.peer_of.append(np.concatenate([at[c][own[:, None] + far] for c in range(copies)])[order])

    def _places(self, copies: int) -> I64:
        """New number of each rank of each copy."""
        t = self.template
        rank, copy = np.arange(t.ranks)[None, :], np.arange(copies)[:, None]
        if t.axis is None:
            return copy * t.ranks + rank
        stride, size = t.axis
        block, place, inner = rank // (stride * size), rank // stride % size, rank % stride
        return (block * size * copies + copy * size + place) * stride + inner

    def _cut(self, ranks: int, members: list[I64], role_of: I64, slots: list[I64], peers: list[I64]) -> None:
        t = self.template
        parts, rest = divmod(t.ranks, ranks)
        keep = np.ones(t.ranks, bool)
        grown = [members[g] for g in sorted(self.grows)]
        if rest or not grown or any(len(m) % parts for m in grown):
            raise UsageError(f"{ranks} ranks cannot be cut out of {t.ranks}", hint="learn from a smaller job")
        for m in grown:
            keep[m[len(m) // parts :]] = False
        if keep.sum() != ranks:
            raise UsageError(f"{ranks} ranks cannot be cut out of {t.ranks}", hint="learn from a smaller job")
        new = np.cumsum(keep) - 1
        self.role_of = role_of[keep]
        self._bind([new[m[keep[m]]] for m in members])
        self.group_of, self.peer_of = [], []
        for role, (table, far) in enumerate(zip(slots, peers, strict=True)):
            own = np.flatnonzero(role_of == role)
            stays = keep[own]
            self.group_of.append(table[stays])
            peer = own[:, None] + far
            if peer.size and not keep[peer[stays]].all():
                raise UsageError(f"{ranks} ranks: a message would have no receiver", hint="learn from a smaller job")
            self.peer_of.append(new[peer[stays]])

    def _bind(self, entries: list[I64]) -> None:
        start = np.cumsum([0, *map(len, entries)]).astype(np.int64)
        flat = np.concatenate(entries).astype(np.int32) if entries else np.zeros(0, np.int32)
        names = tuple(str(i + 1) for i in range(len(entries)))
        self.groups = Groups(names, start, flat, np.ones(len(entries), bool))

    def larger(self, role: int) -> list[float]:
        """How much larger the group of each slot is than it was: 1 for those that do not grow."""
        tables = _by_role(self.template, self.template.group_of, "groups")[role]
        return [self.factor if int(tables[0, slot]) in self.grows else 1.0 for slot in range(tables.shape[1])]


def _by_role(template: Template, flat: Sequence[Sequence[tuple[int, int]]], count: str) -> list[I64]:
    """Tables of each role: a row for each of its ranks, a column for each slot."""
    role_of = _flat(template.role_of)
    found, at = [], 0
    for number, role in enumerate(template.roles):
        slots = getattr(role, count)
        columns = [_flat(runs) for runs in flat[at : at + slots]]
        at += slots
        rows = int((role_of == number).sum())
        found.append(np.stack(columns, 1) if columns else np.zeros((rows, 0), np.int64))
    return found
