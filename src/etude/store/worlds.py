"""The number of ranks of a run, if the files present do not imply it.

A reader takes the world to be as large as any rank that is present, in a group or a peer. If a job knows of more, the
attribute `world_size` in the metadata of each rank says so, and the reader removes it again: a job round-trips
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from etude.kernels.varint import encode_varint
from etude.model.job import MAX_WORLD
from etude.model.schema import ValueKind
from etude.store.et_decode import attribute
from etude.store.et_irregular import delimited, fields

NAME: Final = "world_size"


def said(metadata: bytes) -> int:
    """The world size in a GlobalMetadata message; 0: none."""
    world = 0
    for f in fields(metadata, "", 0):
        if f.wire == 2 and f.number == 2:
            name, kind, value, _ = attribute(f.payload, "", 0)
            if name == NAME and kind.is_integer and isinstance(value, int) and 0 < value <= MAX_WORLD:
                world = value
    return world


def with_world(metadata: bytes, world: int) -> bytes:
    """The message with a world size attribute; unchanged if it has one."""
    return metadata if said(metadata) == world else metadata + _field(world)


def without_world(metadata: bytes, world: int) -> bytes:
    """The message without the attribute that `with_world` adds."""
    return metadata.removesuffix(_field(world))


def _field(world: int) -> bytes:
    number = int(ValueKind.INT64) + 2
    return delimited(2, delimited(1, NAME.encode()) + encode_varint(number << 3) + encode_varint(world))


def implied(ranks: Iterable[int], peers: Iterable[int], members: Iterable[int]) -> int:
    """The world size implied by the ranks, peers and members of groups."""
    near = (peer for peer in peers if 0 <= peer < MAX_WORLD)
    return 1 + max((*ranks, *near, *members), default=-1)
