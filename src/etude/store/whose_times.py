"""Whose times a job has, in the metadata of its files.

A job with the times of its program, or an estimate of them, has attributes for that in the metadata of each rank; the
reader removes them again: a job round-trips unchanged. A file without them does not know whose times it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from etude.model.as_recorded import TIMES_TOLD
from etude.model.schema import ValueKind
from etude.store.et_decode import attribute
from etude.store.et_irregular import delimited, fields

KINDS = ("program", "estimated")


def with_times(metadata: bytes, provenance: Mapping[str, str]) -> bytes:
    """A GlobalMetadata message with attributes for what the provenance says of the times."""
    return metadata + _fields(provenance) if not said([metadata]) else metadata


def said(messages: Iterable[bytes]) -> dict[str, str]:
    """What all of these messages say of the times, as provenance; nothing, if they do not agree."""
    found = [_said(message) for message in dict.fromkeys(messages)]
    return found[0] if found and all(one == found[0] for one in found) else {}


def without_times(metadata: bytes, told: Mapping[str, str]) -> bytes:
    """The message without the attributes that `with_times` adds."""
    return metadata.removesuffix(_fields(told)) if told else metadata


def _said(metadata: bytes) -> dict[str, str]:
    found = {}
    for f in fields(metadata, "", 0):
        if f.wire == 2 and f.number == 2:
            name, kind, value, _ = attribute(f.payload, "", 0)
            if name in TIMES_TOLD and kind == ValueKind.STRING and isinstance(value, str):
                found[name] = value
    numbers = [value for name, value in found.items() if name.endswith("_ns")]
    known = found.get("timing") in KINDS and all(n.isdecimal() and n.isascii() and len(n) < 19 for n in numbers)
    if found.get("timing") == "estimated":
        known = known and {"timing_low_ns", "timing_high_ns"} <= set(found)
    return {name: found[name] for name in TIMES_TOLD if name in found} if known else {}


def _fields(told: Mapping[str, str]) -> bytes:
    if told.get("timing") not in KINDS:
        return b""
    number = int(ValueKind.STRING) + 2
    parts = [(name.encode(), told[name].encode()) for name in TIMES_TOLD if name in told]
    return b"".join(delimited(2, delimited(1, name) + delimited(number, value)) for name, value in parts)
