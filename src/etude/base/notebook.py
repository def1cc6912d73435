"""How values show themselves in a notebook: small pieces of HTML that need no script and no other file.

Nouns have a `_repr_html_` made of `card`. A `pyarrow.Table`, which is what analyses return, is shown by `table`, which
`register` installs in IPython if it runs; `import etude` does so in a notebook. All text is escaped, and colours follow
the reader's theme, light or dark.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from etude.base.units import clock_time, format_bytes, format_time, is_moment

ROWS: Final = 10
"""Rows of a table that are shown: the first half and the last."""
COLUMNS: Final = 24
LETTERS: Final = 60
STYLE: Final = """<style>
.etude-nb{--compute:#0072b2;--communication:#d55e00;--memory:#009e73;--idle:#8d99a8;--good:#047857;--bad:#c2410c;
--soft:#56616f;--rule:rgb(128 128 128/.3);--track:rgb(128 128 128/.16);
font:13px/1.45 system-ui,sans-serif;color:inherit;max-width:880px;overflow-x:auto}
@media (prefers-color-scheme:dark){.etude-nb{--compute:#56b4e9;--communication:#f0883e;--memory:#2cc39a;--good:#3fd19b;
--bad:#ff9466;--soft:#a2aebd}}
[data-jp-theme-light="true"] .etude-nb{--compute:#0072b2;--communication:#d55e00;--memory:#009e73;--good:#047857;
--bad:#c2410c;--soft:#56616f}
[data-jp-theme-light="false"] .etude-nb{--compute:#56b4e9;--communication:#f0883e;--memory:#2cc39a;--good:#3fd19b;
--bad:#ff9466;--soft:#a2aebd}
.etude-nb .head{font-weight:600;margin:2px 0 6px}.etude-nb .head span,.etude-nb .note{color:var(--soft);font-weight:400}
.etude-nb .note{margin:4px 0}.etude-nb dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(112px,1fr));
gap:4px 14px;margin:0 0 8px}.etude-nb dt{color:var(--soft);font-size:11.5px;font-weight:400}
.etude-nb dd{margin:0;overflow-wrap:anywhere}
.etude-nb table{border-collapse:collapse;margin:4px 0 8px;font-size:12.5px}
.etude-nb th,.etude-nb td{padding:3px 9px;border-bottom:1px solid var(--rule);text-align:left;background:none;
color:inherit}.etude-nb th{color:var(--soft);font-weight:600}
.etude-nb .n{text-align:right;font-variant-numeric:tabular-nums}
.etude-nb .good{color:var(--good)}.etude-nb .bad{color:var(--bad)}
.etude-nb .track{display:block;width:160px;height:8px;border-radius:4px;background:var(--track);overflow:hidden}
.etude-nb .track i{display:block;height:100%;background:var(--compute)}
.etude-nb ul.legend{display:flex;flex-wrap:wrap;gap:2px 14px;list-style:none;padding:0;margin:4px 0;color:var(--soft)}
.etude-nb .dot{display:inline-block;width:9px;height:9px;border-radius:2px;margin-right:5px}
.etude-nb .bars{display:grid;grid-template-columns:max-content 1fr max-content;gap:4px 10px;align-items:center}
.etude-nb .bar{display:flex;height:14px;background:var(--track);border-radius:4px;overflow:hidden}
.etude-nb .bar i{display:block;height:100%}
.etude-nb .s-compute{background:var(--compute)}.etude-nb .s-communication{background:var(--communication)}
.etude-nb .s-memory{background:var(--memory)}.etude-nb .s-idle{background:var(--idle)}
.etude-nb svg.chart{display:block;width:100%;height:auto;font-size:12px}.etude-nb svg text{fill:var(--soft)}
.etude-nb svg .grid{stroke:var(--rule)}.etude-nb svg .roof{stroke:currentColor;stroke-width:1.4;fill:none}
.etude-nb .f-compute{fill:var(--compute)}.etude-nb .f-communication{fill:var(--communication)}
.etude-nb .f-memory{fill:var(--memory)}.etude-nb .f-idle{fill:var(--idle)}
</style>"""


def card(kind: str, title: str, facts: Sequence[tuple[str, Any]], *bodies: str) -> str:
    """A value in a notebook: what kind it is, its name, some facts, and HTML below them."""
    listed = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts)
    head = f'<div class="head">{text(title)} <span>{text(kind)}</span></div>'
    below = "".join(bodies)
    body = below if below.isprintable() else "".join(map(_visible, below))
    return f'{STYLE}<div class="etude-nb">{head}{f"<dl>{listed}</dl>" if listed else ""}{body}</div>'


def text(value: Any, most: int = 200) -> str:
    """A value as HTML: escaped, without characters that could reorder or hide what is around it."""
    shown = _plain(value)
    if not shown.isprintable():
        shown = "".join(map(_visible, shown.replace("\n", " ")))
    return escape(shown if len(shown) <= most else shown[: most - 1] + "…")


def _visible(letter: str) -> str:
    return letter if letter.isprintable() or letter == "\n" else letter.encode("unicode_escape").decode()


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return str(value)


def shares(rows: Sequence[tuple[str, float, str]]) -> str:
    """Rows of a name, a share from 0 to 1 as a small bar, and a text."""
    lines = "".join(
        f'<tr><td>{text(name)}</td><td><span class="track"><i style="width:{100 * min(max(part, 0.0), 1.0):.1f}%"></i>'
        f'</span></td><td class="n">{text(said)}</td></tr>'
        for name, part, said in rows
    )
    return f"<table>{lines}</table>" if lines else ""


def checks(rows: Iterable[Mapping[str, Any]]) -> str:
    """Checks of a study: whether each holds, its name and its numbers."""
    lines = "".join(
        f'<tr><td class="{"good" if row["ok"] else "bad"}">{"ok" if row["ok"] else "does not hold"}</td>'
        f"<td>{text(row['name'])}</td><td>{text(row['detail'])}</td></tr>"
        for row in rows
    )
    return f"<table>{lines}</table>" if lines else ""


def note(said: str) -> str:
    return f'<div class="note">{text(said, 400)}</div>'


# -- tables ------------------------------------------------------------------------------------------------------------


def table(found: Any) -> str:
    """A `pyarrow.Table` as HTML: its first and last rows, times and sizes with units."""
    return card("table", f"{len(found):,} rows × {len(found.schema.names)} columns", (), grid(found))


def grid(found: Any, rows: int = ROWS) -> str:
    """The first and last rows of a `pyarrow.Table`; a column of `_ns` or `_bytes` with its units."""
    names = list(found.schema.names)
    half = rows // 2 if len(found) > rows else len(found)
    parts = [found.slice(0, half)] + ([found.slice(len(found) - half)] if len(found) > rows else [])
    blocks = [list(zip(*(c.to_pylist() for c in part.columns[:COLUMNS]), strict=True)) for part in parts]
    return _grid(names, blocks, len(found))


def records(rows: Sequence[Mapping[str, Any]], most: int = ROWS) -> str:
    """Rows of one shape, as mappings: the first and the last."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    half = most // 2 if len(rows) > most else len(rows)
    parts = [rows[:half]] + ([rows[len(rows) - half :]] if len(rows) > most else [])
    blocks = [[tuple(row.get(name) for name in names[:COLUMNS]) for row in part] for part in parts]
    return _grid(names, blocks, len(rows))


def _grid(names: Sequence[str], blocks: Sequence[Sequence[tuple[Any, ...]]], count: int) -> str:
    shown = names[:COLUMNS]
    numbers = [all(_is_number(row[i]) for block in blocks for row in block) for i in range(len(shown))]
    heads = "".join(
        f"<th{_right(right)}>{text(_head(n), LETTERS)}</th>" for n, right in zip(shown, numbers, strict=True)
    )
    left = count - sum(map(len, blocks))
    gap = f'<tr><td colspan="{len(shown)}" class="note">… {left:,} more rows …</td></tr>'
    lines = gap.join("".join(_line(shown, row, numbers) for row in block) for block in blocks)
    cut = note(f"{len(names) - COLUMNS} more columns") if len(names) > COLUMNS else ""
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>{cut}"


def _line(names: Sequence[str], row: Sequence[Any], numbers: Sequence[bool]) -> str:
    cells = zip(names, row, numbers, strict=True)
    return "<tr>" + "".join(f"<td{_right(n)}>{text(_value(name, v), LETTERS)}</td>" for name, v, n in cells) + "</tr>"


def _right(number: bool) -> str:
    return ' class="n"' if number else ""


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _head(name: str) -> str:
    for ending, unit in (("_ns", ""), ("_bytes", ""), ("_pct", " %"), ("_bytes_per_s", " B/s")):
        if name.endswith(ending) and name != ending:
            return name.removesuffix(ending).replace("_", " ") + unit
    return name.replace("_", " ")


def _value(name: str, value: Any) -> Any:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if known and name.endswith("_ns"):
        return clock_time(value) if is_moment(value) else format_time(round(value))
    if known and name.endswith("_bytes"):
        return format_bytes(round(value))
    return value


# -- IPython -----------------------------------------------------------------------------------------------------------


def register(shell: Any = None) -> bool:
    """Lets IPython show tables as `table` does, unless something else shows them already; False where none runs."""
    if shell is None:
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    formatter = getattr(getattr(shell, "display_formatter", None), "formatters", {}).get("text/html")
    if formatter is None:
        return False
    if ("pyarrow.lib", "Table") not in getattr(formatter, "deferred_printers", {}):
        formatter.for_type_by_name("pyarrow.lib", "Table", table)
    return True


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext etude.notebook`, for a notebook that imported Etude before IPython was there."""
    register(shell)
