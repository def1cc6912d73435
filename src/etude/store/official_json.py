"""The text that Chakra's official jsonizer writes: protobuf's JSON of each message, one after the other.

That is not one JSON value: `valid` puts the objects in a list instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from etude.base.errors import FormatError
from etude.base.files import write_pieces
from etude.store import compressed
from etude.store.et_decode import Decoded, decode_files
from etude.store.json_write import messages

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def write_json(source: Path, out: Path, *, valid: bool) -> str:
    """The text of an `.et` file. Returns what was written, in words."""
    decoded = read_one(source)
    write_pieces(out, (message.encode() for message in official_json(decoded, valid=valid)))
    return f"wrote {out}: {len(decoded.trace):,} nodes"


def official_json(decoded: Decoded, *, valid: bool = False) -> Iterator[str]:
    """The file, message by message: GlobalMetadata, then the nodes."""
    before = "[\n" if valid else ""
    for message in messages(decoded):
        if '"_' in message:
            message = msgspec.json.encode(_of_schema(msgspec.json.decode(message))).decode()
        shown = msgspec.json.format(message, indent=2)
        yield before + (shown if shown.isascii() else _NOT_ASCII.sub(_escaped, shown))
        before = ",\n" if valid else ""
    if valid:
        yield "\n]\n"


def _of_schema(value: Any) -> Any:
    """The value without our own keys for what protobuf's mapping cannot express."""
    if isinstance(value, dict):
        return {key: _of_schema(inner) for key, inner in value.items() if not key.startswith("_")}
    return [_of_schema(inner) for inner in value] if isinstance(value, list) else value


def _escaped(found: re.Match[str]) -> str:
    raw = found[0].encode("utf-16-be")
    return "".join(f"\\u{raw[i]:02x}{raw[i + 1]:02x}" for i in range(0, len(raw), 2))


def read_one(path: Path) -> Decoded:
    """One `.et` file, compressed or not, as the official tools take it. Raises FormatError for JSON."""
    heap, size = compressed.load(path)
    if heap[:1].tobytes() in (b"{", b"["):
        hint = "`etude chakra converter PyTorch` converts it"
        raise FormatError("is JSON, but a Chakra trace (`.et`) is needed", path=path, hint=hint)
    return decode_files(heap, [(0, size, str(path))])[0]
