"""HTML that is known to be HTML: text of files enters it escaped, whoever writes the page."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from html import escape

__all__ = ["Markup", "digest", "escaped", "heading", "joined", "paragraph"]


class Markup(str):
    """HTML made here. Plain text that is added to it is escaped."""

    __slots__ = ()

    def __add__(self, other: str) -> Markup:
        return Markup(str.__add__(self, escaped(other)))

    def __radd__(self, other: str) -> Markup:
        return Markup(str.__add__(escaped(other), self))


def escaped(text: str) -> Markup:
    """Text as HTML; HTML as it is."""
    return text if isinstance(text, Markup) else Markup(escape(text))


def joined(parts: Iterable[str]) -> Markup:
    """All parts in a row; plain text among them is escaped."""
    return Markup("".join(map(escaped, parts)))


def heading(text: str) -> Markup:
    return Markup(f"<h3>{escaped(text)}</h3>")


def paragraph(text: str, kind: str = "lead") -> Markup:
    return Markup(f'<p class="{escape(kind)}">{escaped(text)}</p>')


def digest(text: str) -> str:
    """The source expression by which a Content-Security-Policy admits this inline script or style, and no other."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
