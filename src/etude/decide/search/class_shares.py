"""Candidates of unequal parts: tokens and heads for each class of context-parallel ranks, all of them, or moves of some
from one class to another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import NamedTuple, TypeVar

import numpy as np

from etude.base.errors import UsageError
from etude.machine import System
from etude.machine.system import Device
from etude.make.generate import Plan

T = TypeVar("T")


class ClassShares(NamedTuple):
    """Tokens, and heads where these are chosen too, of a rank of each class."""

    tokens: tuple[int, ...]
    heads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What is dealt out: `total` in multiples of `unit`, at least one to each rank of every class."""

    total: int
    unit: int
    counts: tuple[int, ...]
    """Ranks of each class."""

    def __post_init__(self) -> None:
        if self.unit < 1 or self.total % self.unit or self.total // self.unit < sum(self.counts):
            raise UsageError(
                f"{self.total:,} in multiples of {self.unit:,} for {sum(self.counts)} ranks", hint="use another unit"
            )

    def all(self) -> Iterator[tuple[int, ...]]:
        """Every way, the first class slowest."""

        def go(left: int, counts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if len(counts) == 1:
                if left % counts[0] == 0 and left >= counts[0]:
                    yield (left // counts[0] * self.unit,)
                return
            rest = sum(counts[1:])
            for each in range(1, (left - rest) // counts[0] + 1):
                for others in go(left - each * counts[0], counts[1:]):
                    yield (each * self.unit, *others)

        return go(self.total // self.unit, self.counts)

    def __len__(self) -> int:
        return _ways(self.total // self.unit, self.counts)

    def moved(self, parts: tuple[int, ...], times: int) -> Iterator[tuple[int, ...]]:
        """A rank's part of one class grows and of another shrinks, by `times` the least that keeps the sum."""
        for a, to in enumerate(self.counts):
            for b, source in enumerate(self.counts):
                if a == b:
                    continue
                both = gcd(to, source)
                found = list(parts)
                found[a] += times * self.unit * source // both
                found[b] -= times * self.unit * to // both
                if found[b] >= self.unit:
                    yield tuple(found)


@lru_cache(maxsize=4096)
def _ways(units: int, counts: tuple[int, ...]) -> int:
    if len(counts) == 1:
        return int(units >= counts[0] and units % counts[0] == 0)
    most = (units - sum(counts[1:])) // counts[0]
    return sum(_ways(units - each * counts[0], counts[1:]) for each in range(1, most + 1))


@dataclass(frozen=True, slots=True, eq=False)
class DeviceClasses:
    """Context-parallel ranks by the devices that they sit on, or each by itself."""

    of: tuple[int, ...]
    """Class of each context-parallel rank."""
    names: tuple[str, ...]
    devices: tuple[Device, ...]
    """The slowest of a class."""

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(np.bincount(self.of, minlength=len(self.names)).tolist())

    def by_rank(self, parts: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(parts[number] for number in self.of)

    def named(self, parts: tuple[T, ...]) -> Mapping[str, T]:
        return dict(zip(self.names, parts, strict=True))


def classes_of(plan: Plan, at: list[int], system: System, *, each: bool) -> DeviceClasses:
    """`at`: context-parallel number of each rank. Ranks of one number, of several copies, count as the slowest."""
    kinds, names = system.all_kinds, list(system.devices) or [system.device.name]
    kind = system.kind_of(np.arange(plan.gpus)).tolist()
    seats = [tuple(sorted({k for k, number in zip(kind, at, strict=True) if number == c})) for c in range(plan.cp)]
    keys = [(c, *seat) for c, seat in enumerate(seats)] if each else list(seats)
    distinct = list(dict.fromkeys(keys))
    found_names, devices = [], []
    for number, key in enumerate(distinct):
        seat = key[1:] if each else key
        devices.append(min((kinds[k] for k in seat), key=lambda d: d.peak(plan.dtype)))
        found_names.append(f"rank {number}" if each else "+".join(names[k] for k in seat))
    return DeviceClasses(tuple(distinct.index(key) for key in keys), tuple(found_names), tuple(devices))
