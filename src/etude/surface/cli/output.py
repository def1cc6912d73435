"""Results on stdout, talk on stderr.

`emit` prints a table, a list of rows or one record: to a terminal as a Rich table, elsewhere as plain aligned
text, or as JSON, CSV or Markdown if asked. Times have units where people read them (moments of a recording are times of
day in UTC), and are exact in JSON and CSV. `on_stderr` and
`bar` are where notes and progress go (`base.talk`); there is no bar off a terminal.
"""

import html
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from etude.base.errors import UsageError
from etude.base.units import clock_time, is_moment, readable_time

if TYPE_CHECKING:
    import pyarrow as pa

Row: TypeAlias = Mapping[str, Any]
Emitted: TypeAlias = "pa.Table | Row | Sequence[Row]"


_FORMULA = ("=", "+", "-", "@")
_MEASURES = ("part", "measure")
"""Columns that name the measure of a row, `span_ns` ..."""
_OF_MEASURE = ("a", "b", "delta")
"""... and those that have its values."""
LONGEST = 80
"""Letters of a name that a reader is shown: those of kernels can have a thousand."""
_NOTHING = "-"  # what a missing value looks like to a reader


def on_stderr(text: str) -> None:
    """A note, on stderr."""
    print(text, file=sys.stderr)


def emit(value: Emitted, *, json: bool = False, csv: bool = False, md: bool = False, title: str = "") -> None:
    """Prints `value` on stdout. In JSON a table is a list of objects, one a line, and a record is one object, whose
    members may be tables."""
    if json + csv + md > 1:
        raise UsageError("only one of --json, --csv and --md can be given")
    if json:
        _emit_json(value)
        return
    names, rows, right = _columns(value)
    if csv:
        _emit_csv(names, rows)
        return
    names, rows = _with_units(names, rows, record=isinstance(value, Mapping))
    if md:
        _emit_markdown(names, rows, right)
    elif sys.stdout.isatty():
        _emit_rich(names, rows, right, title, head=not isinstance(value, Mapping))
    else:
        _emit_plain(names, rows, right, head=not isinstance(value, Mapping))


def print_read(value: Any) -> None:
    """Prints what a reader sees: a record, a table, a text, several of them in their order, or nothing."""
    if isinstance(value, Iterator):
        for one in value:
            print_read(one)
    elif isinstance(value, str):
        print(value, end="" if value.endswith("\n") else "\n")
    elif value is not None:
        emit(shortened(value) if hasattr(value, "schema") else value)


def print_yaml(value: Mapping[str, Any]) -> None:
    """Prints a record as YAML, in its order."""
    import yaml

    print(yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True), end="")


def shortened(table: "pa.Table") -> "pa.Table":
    """A table for readers, with long names cut."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for number, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            text = table.column(number).combine_chunks()
            short = pc.binary_join_element_wise(pc.utf8_slice_codeunits(text, 0, LONGEST - 1), "…", "")
            text = pc.if_else(pc.greater(pc.utf8_length(text), LONGEST), short, text)
            table = table.set_column(number, field.name, text)
    return table


@contextmanager
def bar(what: str, total: int | None = None) -> Iterator[Callable[..., None]]:
    """Yields `advance(amount, note="")`. Draws a bar on stderr and takes it away at the end; nothing off a terminal."""
    if not sys.stderr.isatty():
        yield lambda amount, note="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        shown = _printable(what).replace("[", r"\[")
        task = drawn.add_task(shown, total=total)

        def advance(amount: int, note: str = "") -> None:
            drawn.update(task, advance=amount, description=f"{shown}, {note}" if note else shown)

        yield advance


def _columns(value: Emitted) -> tuple[list[str], Iterator[Sequence[Any]], list[bool]]:
    """Column names, rows of values in this order, and which columns are right-aligned because they hold numbers."""
    if isinstance(value, Mapping):
        return ["name", "value"], iter(list(value.items())), [False, False]
    if isinstance(value, Sequence):
        names = list(dict.fromkeys(name for row in value for name in row))
        right = [_all_numbers(row.get(name) for row in value) for name in names]
        return names, ([row.get(name) for name in names] for row in value), right
    import pyarrow.types as kinds

    # By position, not by name: the result of a query may have two columns of one name.
    columns = ([column.to_pylist() for column in batch.columns] for batch in value.to_batches(max_chunksize=65536))
    right = [kinds.is_integer(t) or kinds.is_floating(t) or kinds.is_decimal(t) for t in value.schema.types]
    return list(value.schema.names), (row for batch in columns for row in zip(*batch, strict=True)), right


def _with_units(
    names: list[str], rows: Iterable[Sequence[Any]], *, record: bool
) -> tuple[list[str], Iterator[Sequence[Any]]]:
    """Formats times: `span_ns` 812400000 becomes `span` 812.4 ms. A row may contain the name of its measure."""
    if record:
        return names, ([_bare(name, value), _timed(name, value)] for name, value in rows)
    at = next((i for i, name in enumerate(names) if name in _MEASURES), None)

    def shown(row: Sequence[Any]) -> Sequence[Any]:
        measure = None if at is None else row[at]
        cells = [
            _timed(measure if name in _OF_MEASURE else name, value) for name, value in zip(names, row, strict=True)
        ]
        return cells if at is None else [*cells[:at], _bare(measure, 0), *cells[at + 1 :]]

    return [_bare(name, 0) for name in names], map(shown, rows)


def _bare(name: Any, value: Any) -> Any:
    return name.removesuffix("_ns") if isinstance(name, str) and _is_time(name, value) else name


def _timed(name: Any, value: Any) -> Any:
    if not _is_time(name, value) or value is None or not math.isfinite(value):
        return value
    return clock_time(value) if is_moment(value) else readable_time(value)


def _is_time(name: Any, value: Any) -> bool:
    """Whether a column is a time: `rank_ns` is, `_ns` alone and the rate `bytes_per_ns` are not."""
    number = value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    return number and isinstance(name, str) and name.endswith("_ns") and len(name) > 3 and not name.endswith("_per_ns")


def _all_numbers(values: Iterable[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)


def _emit_json(value: Emitted) -> None:
    import msgspec

    encoder = msgspec.json.Encoder(enc_hook=_plain)
    if isinstance(value, Mapping):
        rest = {name: member for name, member in value.items() if not hasattr(member, "to_batches")}
        text = msgspec.json.format(encoder.encode(rest), indent=2).decode()
        if len(rest) == len(value):
            print(text)
            return
        sys.stdout.write(text.removesuffix("}").rstrip())
        before = ",\n" if rest else "\n"
        for name in [name for name in value if name not in rest]:  # tables are long: row by row, behind the rest
            sys.stdout.write(f"{before}  {encoder.encode(name).decode()}: ")
            _emit_json(value[name])
            before = "  ,\n"
        print("}")
        return
    rows: Iterable[Row]
    if isinstance(value, Sequence):
        rows = value
    else:
        value = value.rename_columns(_distinct(value.schema.names))  # a query may have two columns of one name
        rows = (row for batch in value.to_batches(max_chunksize=65536) for row in batch.to_pylist())
    before = "[\n"
    for row in rows:
        sys.stdout.write(before + encoder.encode(dict(row)).decode())
        before = ",\n"
    print("[]" if before == "[\n" else "\n]")


def _distinct(names: Sequence[str]) -> list[str]:
    """Makes names unique by appending a number to repeated ones: rank, rank_2."""
    found: list[str] = []
    for name in names:
        number, fresh = 1, name
        while fresh in found:
            number += 1
            fresh = f"{name}_{number}"
        found.append(fresh)
    return found


def _plain(value: Any) -> Any:
    """A JSON value for a NumPy scalar or array, or for a path."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _emit_csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(_cell, names))
    writer.writerows([None if value is None else _cell(value) for value in row] for row in rows)


def _cell(value: Any) -> str:
    """A CSV cell. Numbers stay numbers. Text may come from files: control characters are escaped, and text that a
    spreadsheet would take for a formula gets a quote in front."""
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    if isinstance(value, int | float):
        return _text(value)
    text = _printable(_text(value))
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) and text != _NOTHING else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _emit_markdown(names: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[bool]) -> None:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    print(line(map(_markdown, names)))
    print(line("---:" if number else "---" for number in right))
    for row in rows:
        print(line(_markdown(_text(value)) for value in row))


def _markdown(text: str) -> str:
    """Escapes text for Markdown: names come from files, and Markdown would pass on HTML and links."""
    return html.escape(_printable(text), quote=False).replace("|", "\\|").replace("](", "]\\(")


def _emit_plain(names: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[bool], *, head: bool) -> None:
    from rich.cells import cell_len

    lines = [[_printable(name) for name in names]] if head else []
    lines += [[_printable(_text(value)) for value in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for cells in lines:
        padded = (
            " " * (width - cell_len(cell)) + cell if number else cell + " " * (width - cell_len(cell))
            for cell, width, number in zip(cells, widths, right, strict=True)
        )
        print("  ".join(padded).rstrip())


def _emit_rich(
    names: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[bool], title: str, *, head: bool
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout)
    heads = [_printable(name) for name in names]
    cells = [[_printable(_text(value)) for value in row] for row in rows]
    widths = _widths(heads if head else [], cells, right)
    blocks = [list(range(len(names)))]
    if sum(widths) + 3 * len(widths) + 1 > console.width:  # a column has a blank on both sides and one between
        heads = [name.replace("_", "_\n") for name in heads]
        blocks = _blocks(_widths(heads if head else [], cells, right, text=16), console.width)
    for block in blocks:
        table = Table(title=Text(title) if title else None, title_justify="left", box=box.SIMPLE_HEAD, show_header=head)
        for i in block:
            justify: Literal["left", "right"] = "right" if right[i] else "left"
            table.add_column(Text(heads[i]), justify=justify, overflow="fold", no_wrap=right[i])
        for row in cells:
            table.add_row(*(Text(row[i]) for i in block))  # Text: a `[` in a name is not markup
        console.print(table)


def _widths(
    heads: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool], text: int | None = None
) -> list[int]:
    """Widths of the columns; columns of text, which can be wrapped, are at most `text` wide."""
    from rich.cells import cell_len

    found = []
    for i, number in enumerate(right):
        parts = [*(heads[i].split("\n") if heads else []), *(row[i] for row in cells)]
        width = max(map(cell_len, parts), default=0)
        found.append(width if number or text is None else min(width, text))
    return found


def _blocks(widths: Sequence[int], room: int) -> list[list[int]]:
    """Splits columns into several tables, each no wider than the terminal if possible; all have the first column."""
    blocks, used = [[0]], widths[0] + 4
    for i in range(1, len(widths)):
        if used + widths[i] + 3 > room and len(blocks[-1]) > 1:
            blocks.append([0])
            used = widths[0] + 4
        blocks[-1].append(i)
        used += widths[i] + 3
    return blocks


def _text(value: Any) -> str:
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) or _NOTHING
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or _NOTHING
    return str(value)


def _printable(text: str) -> str:
    """Escapes what could move the cursor or break a row: names come from files."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
