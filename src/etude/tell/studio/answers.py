"""Forms of an answer, and what a question may give."""

from __future__ import annotations

from typing import Any

import msgspec

from etude.base.errors import UsageError


class ColumnsAnswer(msgspec.Struct):
    """An answer of columns: what is said of them as JSON, and arrays one after the other."""

    says: dict[str, Any]
    columns: list[Any]

    def to_bytes(self) -> bytes:
        """Length of the JSON as 4 bytes, the JSON, then each column, at a multiple of 8."""
        sizes = [[str(c.dtype), len(c)] for c in self.columns]
        head = msgspec.json.encode({**self.says, "columns": sizes})
        head += b" " * (-(len(head) + 4) % 8)
        body = [len(head).to_bytes(4, "little"), head]
        for column in self.columns:
            plain = column.tobytes()
            body += [plain, b"\0" * (-len(plain) % 8)]
        return b"".join(body)


class FileAnswer(msgspec.Struct):
    """An answer that is a file, and the command that writes it."""

    name: str
    content: bytes
    command: str


def whole(given: dict[str, Any], name: str) -> int:
    """A whole number."""
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) >= 2**63:
        raise UsageError(f"`{name}` is not a number")
    return int(value)


def text(given: dict[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or len(value) > 100_000:
        raise UsageError(f"`{name}` is not a text")
    return value


def numbers(given: dict[str, Any], name: str) -> list[int]:
    """A list of whole numbers."""
    value = given.get(name)
    if not isinstance(value, list) or any(isinstance(one, bool) or not isinstance(one, int) for one in value):
        raise UsageError(f"`{name}` is not a list of whole numbers")
    return value


def drawn_rows(given: dict[str, Any]) -> list[tuple[int, int]]:
    """(rank, row) of each row that is drawn: `rows: [rank, row, rank, row, ...]`."""
    flat = numbers(given, "rows")
    return list(zip(flat[::2], flat[1::2], strict=True)) if len(flat) % 2 == 0 else []


def state_given(given: dict[str, Any]) -> dict[str, Any]:
    """Where the knobs are."""
    state = given.get("state", {})
    if not isinstance(state, dict):
        raise UsageError("`state` is not an object")
    return state
