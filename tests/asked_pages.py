"""A page read as its reader does, and its numbers worked out again: by a slow evaluation of their expressions over
tables that the analyses give of the recording, opened afresh.

Nothing of the page's own evaluation is used: an expression is Python over lists here.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from etude.tell.report import words

NUMERAL = re.compile(r"(?<![\w.,:/-])\d[\d,.]*")
"""A number in a text; not the 100 of H100."""
COMMAND = re.compile("`[^`]*`")
SILENT = {"script", "style", "title", "svg", "button", "th", "noscript", "dialog", "kbd", "h3"}
"""What is no statement about the run: drawings with their scales, headings, help."""


class Column(list):  # type: ignore[type-arg]
    """A list with the comparisons and the arithmetic of a column."""

    def _each(self, other: Any, what: Callable[[Any, Any], Any]) -> Column:
        others = other if isinstance(other, Column) else [other] * len(self)
        return Column([None if a is None or b is None else what(a, b) for a, b in zip(self, others, strict=True)])

    def __eq__(self, other: object) -> Any:
        return Column([a == other for a in self])

    def __ne__(self, other: object) -> Any:
        return Column([a != other for a in self])

    __hash__ = None  # type: ignore[assignment]

    def __gt__(self, other: Any) -> Any:
        return Column([a is not None and a > other for a in self])

    def __ge__(self, other: Any) -> Any:
        return Column([a is not None and a >= other for a in self])

    def __lt__(self, other: Any) -> Any:
        return Column([a is not None and a < other for a in self])

    def __and__(self, other: Any) -> Column:
        return self._each(other, lambda a, b: a and b)

    def __sub__(self, other: Any) -> Column:
        return self._each(other, lambda a, b: a - b)


class Rows:
    def __init__(self, rows: list[dict[str, Any]], names: list[str]) -> None:
        self.rows, self.names = rows, names

    def __getattr__(self, name: str) -> Column:
        assert name in self.names, f"no column {name}"
        return Column([row[name] for row in self.rows])

    def __getitem__(self, what: Any) -> Any:
        if isinstance(what, int):
            return Row(self.rows[what])
        return Rows([row for row, held in zip(self.rows, what, strict=True) if held], self.names)

    def __len__(self) -> int:
        return len(self.rows)


class Row:
    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)


def _known(values: Any) -> list[Any]:
    return [value for value in values if value is not None]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda values: sum(_known(values)),
    "mean": lambda values: statistics.fmean(_known(values)) if _known(values) else None,
    "median": lambda values: statistics.median(_known(values)) if _known(values) else None,
    "min": lambda values: min(_known(values)),
    "max": lambda values: max(_known(values)),
    "count": len,
    "quantile": lambda values, part: _quantile(sorted(_known(values)), part),
    "round": round,
    "least": min,
    "most": max,
    "item": lambda values, number: values[number],
}


def _quantile(values: list[Any], part: float) -> float:
    """Between two values in proportion."""
    at = part * (len(values) - 1)
    low = int(at)
    return values[low] + (at - low) * (values[min(low + 1, len(values) - 1)] - values[low])


class Again:
    """Expressions over the tables of a run. `gain` is the re-timing of the run."""

    def __init__(self, table: Callable[[str], pa.Table], gain: Callable[..., Any]) -> None:
        self.table, self.gain = table, gain
        self.known: dict[str, Rows] = {}

    def rows(self, name: str) -> Rows:
        if name not in self.known:
            found = self.table(name)
            self.known[name] = Rows(found.to_pylist(), found.column_names)
        return self.known[name]

    def __call__(self, query: str) -> Any:
        names = {
            name: self.rows(name) for name in set(re.findall(r"\b([a-z_]+)(?=[.\[\)])", query)) if self.is_table(name)
        }
        return eval(query, {"__builtins__": {}}, {**FUNCTIONS, "gain": self.gain, **names})

    def is_table(self, name: str) -> bool:
        from etude.tell.report.tables import TABLES

        return name in TABLES


class AgainOfOutcome(Again):
    """Expressions over what a folder of an outcome has: its record, read as JSON, and its tables."""

    def __init__(self, record: dict[str, Any], tables: dict[str, pa.Table]) -> None:
        super().__init__(tables.__getitem__, lambda *kinds: None)
        self.known = {"record": _one_row(record)}
        for name, value in record.items():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                rows = [vars(_one_row(one)[0]) for one in value]
                self.known[name] = Rows(rows, list(rows[0]))
        self.names = {*self.known, *tables}

    def is_table(self, name: str) -> bool:
        return name in self.names


def outcome_again(folder: Path) -> AgainOfOutcome:
    """The files of a folder that a command wrote, read without it."""
    (record,) = (one for name in ("served", "fleet", "outcome") if (one := folder / f"{name}.json").is_file())
    tables = {one.stem: parquet.read_table(one) for one in folder.glob("*.parquet")}
    return AgainOfOutcome(json.loads(record.read_text("utf-8")), tables)


def _one_row(record: dict[str, Any]) -> Rows:
    """A record as one row: a figure inside another one has both names."""
    row, left = {}, list(record.items())
    while left:
        name, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{name}_{inner}", one) for inner, one in value.items()]
        else:
            row[name] = value
    return Rows([row], list(row))


class _Side:
    """The tables of one of two runs as attributes."""

    def __init__(self, again: Again) -> None:
        self._again = again

    def __getattr__(self, name: str) -> Rows:
        return self._again.rows(name)


class AgainOfTwo:
    """Expressions over the tables of two runs, `a.breakdown`, and over those that compare them, `reasons`."""

    def __init__(self, a: Again, b: Again, both: dict[str, list[dict[str, Any]]]) -> None:
        self.both = {name: Rows(rows, list(rows[0]) if rows else []) for name, rows in both.items()}
        self.names = {**FUNCTIONS, **self.both, "a": _Side(a), "b": _Side(b)}

    def rows(self, name: str) -> Rows:
        return self.both[name]

    def __call__(self, query: str) -> Any:
        return eval(query, {"__builtins__": {}}, self.names)


class Cell(NamedTuple):
    table: str
    key: str
    heading: str
    row: int
    form: str
    text: str
    name: str
    """All of a name of which the text is a part."""


@dataclass
class Shown:
    """What a page prints."""

    numbers: list[tuple[str, str, str, str]] = field(default_factory=list)
    """(text, value, query, form)."""
    cells: list[Cell] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)
    """Texts with a number that does not say what it is."""


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found = Shown()
        self.silent = 0
        self.open: list[str] = []
        self.asked: dict[str, str] | None = None
        self.text = ""
        self.table = ""
        self.columns: list[list[str]] = []
        self.row, self.column = -1, 0
        self.cell: str | None = None
        self.title = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in ("input", "br", "meta"):
            return
        self.open.append(tag)
        if tag in SILENT or (tag == "div" and given.get("class") == "name"):
            self.silent += 1
            self.open[-1] = f"!{tag}"
        if tag == "data":
            self.asked, self.text = given, ""
        elif tag == "table":
            self.table, self.columns, self.row = given.get("data-query", ""), [], -1
        elif tag == "th":
            self.columns.append([given.get("data-key", ""), given.get("data-form", ""), ""])
        elif tag == "tr":
            self.row, self.column = self.row + 1, 0
        elif tag == "td":
            self.cell, self.text, self.title = "", "", given.get("title", "")

    def handle_endtag(self, tag: str) -> None:
        while self.open:
            top = self.open.pop()
            if top.startswith("!"):
                self.silent -= 1
            if top.lstrip("!") == tag:
                break
        if tag == "data" and self.asked is not None:
            asked = self.asked
            self.found.numbers.append((self.text, asked["value"], asked["data-query"], asked["data-form"]))
            self.asked = None
        elif tag == "td" and self.cell is not None:
            key, form, heading = self.columns[self.column]
            if self.table:
                self.found.cells.append(
                    Cell(self.table, key, heading, self.row - 1, form, self.cell, self.title or self.cell)
                )
            elif NUMERAL.search(self.cell):
                self.found.bare.append(f"a table: {self.cell}")
            self.column, self.cell = self.column + 1, None
        elif tag == "table":
            self.table = ""

    def handle_data(self, text: str) -> None:
        if self.silent:
            if "!th" in self.open and self.columns:
                self.columns[-1][2] += text
            return
        if self.asked is not None:
            self.text += text
        elif self.cell is not None:
            self.cell += text
        elif NUMERAL.search(COMMAND.sub("", text)):
            self.found.bare.append(text.strip())


def read(page: str) -> Shown:
    """What the page prints, without its footer."""
    reader = Reader()
    reader.feed(page.partition("<footer>")[0])
    return reader.found


def differences(page: str, again: Again | AgainOfTwo) -> Iterator[str]:
    """What is not the same when it is worked out again, and numbers that do not say what they are."""
    shown = read(page)
    yield from (f"does not say what it is: {text[:120]}" for text in shown.bare)
    for text, value, query, form in shown.numbers:
        found = again(query)
        printed = words.formatted_as(form, found)
        if printed.replace(" ", "") != text.replace(" ", "") or not _same(value, found):
            yield f"{text} ({value}) is {printed} ({found}): {query}"
    for table, key, _, number, form, text, _ in shown.cells:
        row = again.rows(table).rows[number]
        found = row[key]
        if found is None or (isinstance(found, float) and found != found):
            wanted = "–"
        else:
            wanted = words.FORMS[form](found) if form in words.FORMS else str(found)
            wanted = text if form not in (*words.FORMS, "str") and not NUMERAL.search(text) else wanted
        if wanted != text:
            yield f"{table}[{number}].{key} is {wanted}, not {text}"


def counted(page: str) -> int:
    shown = read(page)
    return len(shown.numbers) + len(shown.cells)


def _same(value: str, found: Any) -> bool:
    try:
        return abs(float(value) - float(found)) <= 1e-9 * max(abs(float(found)), 1e-9) + 1e-12
    except (TypeError, ValueError):
        return value == str(found)


def twice_named(page: str) -> list[str]:
    """Names that stand for two values on one page: an expression with two values, and columns of one heading in which
    two tables say different things of one row."""
    shown = read(page)
    values: dict[str, set[str]] = {}
    for text, _, query, form in shown.numbers:
        values.setdefault(f"{query} ({form})", set()).add(text.replace(" ", ""))
    found = [name for name, texts in values.items() if len(texts) > 1]
    tables: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in _rows(shown):
        label = next((cell.name for cell in row if not _is_number(cell.text)), f"{row[0].heading} {row[0].text}")
        for cell in row:
            if _is_number(cell.text) and cell is not row[0]:
                tables.setdefault((label, cell.heading), {}).setdefault(cell.table, []).append(cell.text)
    for (label, heading), by_table in tables.items():
        if len({tuple(sorted(texts)) for texts in by_table.values()}) > 1:
            found.append(f"`{heading}` of {label}: {by_table}")
    return found


def _rows(shown: Shown) -> list[list[Cell]]:
    rows: dict[tuple[str, int], list[Cell]] = {}
    for cell in shown.cells:
        rows.setdefault((cell.table, cell.row), []).append(cell)
    return list(rows.values())


def _is_number(text: str) -> bool:
    return re.match(r"[<>+−-]?\d", text) is not None or text == "–"
