"""Bars and tables as HTML that follow the page's theme, work without a script, and can be read aloud."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from etude.tell.view.lengths import sized
from etude.tell.view.markup import Markup, escaped
from etude.tell.view.sentences import Asked, data_element

__all__ = ["Bar", "BarPiece", "Heading", "bars", "legend", "table"]


@dataclass(frozen=True, slots=True)
class BarPiece:
    """A piece of a bar."""

    sort: str
    label: str
    value: float
    hatched: bool = False
    query: str = ""
    """The expression of its value."""


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    pieces: tuple[BarPiece, ...]
    text: str = ""


def legend(entries: Sequence[tuple[str, str]]) -> Markup:
    items = "".join(f'<li><i class="dot s-{escape(sort)}"></i>{escape(label)}</li>' for sort, label in entries)
    return Markup(f'<ul class="legend">{items}</ul>')


def bars(rows: Sequence[Bar], show: Callable[[float], str], *, full: float = 0.0, thin: bool = False) -> Markup:
    """Stacked bars, one below the other, on one scale: the longest, or `full`, takes all the width."""
    full = full or max((sum(p.value for p in row.pieces) for row in rows), default=0.0) or 1.0
    parts = []
    for row in rows:
        total = sum(p.value for p in row.pieces)
        said = ", ".join(f"{p.label} {show(p.value)}" for p in row.pieces if p.value)
        pieces = "".join(_piece(p, full, total, show) for p in row.pieces if p.value > 0)
        parts.append(
            f'<div class="name" title="{escape(row.label)}">{escape(row.label)}</div>'
            f'<div class="bar" role="img" aria-label="{escape(row.label)}: {escape(said)}">{pieces}</div>'
            f'<div class="sum">{_sum(row, total, show)}</div>'
        )
    return Markup(f'<div class="bars{" thin" if thin else ""}">{"".join(parts)}</div>')


def _sum(row: Bar, total: float, show: Callable[[float], str]) -> Markup:
    queries = [piece.query for piece in row.pieces]
    shown = escaped(row.text or show(total))
    if row.text or not queries or not all(queries):
        return shown
    return data_element(Asked(str(shown), " + ".join(queries), show.__name__, total), shown)


def _piece(piece: BarPiece, full: float, total: float, show: Callable[[float], str]) -> str:
    share = f"{100 * piece.value / total:.1f}%" if total else ""
    tip = escape(f"{piece.label}\n{show(piece.value)}, {share}")
    hatch = " hatch" if piece.hatched else ""
    return f'<i class="s-{escape(piece.sort)}{hatch} {sized(100 * piece.value / full)}" data-tip="{tip}"></i>'


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of a column: its value, its name, its format."""

    key: str
    head: str
    show: Callable[[Any], str] = str
    number: bool = True
    code: bool = False
    meter: float = 0.0
    """If > 0, a small bar next to the value, filled to this fraction."""


def table(
    id: str, rows: Sequence[dict[str, Any]], columns: Sequence[Heading], *, first: int = 10, query: str = ""
) -> Markup:
    """A table that is sorted by a click on a heading; rows beyond the first are one click away. `query` is the name of
    the table of which it shows the first rows."""
    heads = "".join(
        f'<th scope="col"{" class=num" if c.number else ""}{_asked(c, query)}><button type="button">{escape(c.head)}'
        "</button></th>"
        for c in columns
    )
    of = f' data-query="{escape(query)}"' if query else ""
    body = "".join(f"<tr>{''.join(_cell(row.get(c.key), c) for c in columns)}</tr>" for row in rows)
    short, more = "", ""
    if len(rows) > first:
        short = ' class="short"'
        text = f"Show all {len(rows):,}"
        more = (
            f'<p class="more"><button type="button" aria-expanded="false" aria-controls="{escape(id)}" '
            f'data-more="{text}">{text}</button></p>'
        )
    return Markup(
        f'<div class="scroll"><table id="{escape(id)}"{short}{of}><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{more}"
    )


def _asked(column: Heading, query: str) -> str:
    return f' data-key="{escape(column.key)}" data-form="{escape(column.show.__name__)}"' if query else ""


def _cell(value: Any, column: Heading) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return f'<td{" class=num" if column.number else ""} data-v=""><span aria-label="not known">–</span></td>'
    shown = escape(column.show(value))
    if not column.number:
        kind = ' class="code"' if column.code else ""
        return f'<td{kind} title="{escape(str(value))}">{shown}</td>' if column.code else f"<td>{shown}</td>"
    meter = ""
    if column.meter > 0:
        part = min(100.0, max(0.0, 100 * value / column.meter))
        meter = f'<span class="meter" aria-hidden="true"><i class="{sized(part)}"></i></span>'
    return f'<td class="num" data-v="{value:.12g}">{shown}{meter}</td>'


# -- plots -------------------------------------------------------------------------------------------------------------
