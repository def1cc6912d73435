"""Writes docs/data-model.md from the schema in the code; `--check` only says whether the page is up to date."""

import sys
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path

from etude.model import schema
from etude.model.job import VALUE_COLUMNS

PAGE = Path(__file__).with_name("data-model.md")

HEAD = """# Data model

<!-- made by docs/generate.py from etude.model.schema: change the schema, then run `make docs` -->

Every column of a `Trace` and what it means on the wire. A Trace is one program without a rank; a `Job` binds traces to ranks; a `Timing` holds recorded or simulated times. The words are in the [vocabulary](vocabulary.md).

## Nodes

Row *i* is node *i*. Text columns hold offsets of length-prefixed slices in the trace's heap, which for a trace that was read is the file itself; `-1` is no text. An integer that was not recorded is `UNKNOWN`, the smallest int64.

"""

EDGES = """
## Dependencies

Two CSR tables, data and control apart: node *i* waits for `data[data_start[i]:data_start[i+1]]` and for `ctrl[ctrl_start[i]:ctrl_start[i+1]]`. Order and duplicates are those of the file. An entry `>= 0` is a row; an entry `< 0` is `~k` into `missing`, the ids that no node of the file has. `data_why` and `ctrl_why` say in one byte an edge why it is there:

"""

ATTRIBUTES = """
## Attributes

`layout[i]` names a row of `layouts`: the ordered list of a node's attributes as (name, value kind or none, doc string, fields newer than the schema, column). An attribute whose meaning Etude owns has its value in the column named in the table above; any integer kind is read, and the kind is remembered, so that the file comes back as it was. All others have their values in `cells`, row after row: the 64 bits of a scalar, or the heap offset of text, bytes and lists. A value that does not fit its column (a collective newer than the schema, an exact time that contradicts the µs field) stays in a cell. Fields of a node that are newer than the schema are kept in `extra_row` and `extra`, and written back behind the node's own.

## Times

Times are int64 ns. In `.et` the exact ns travel as attributes `start_ns` and `duration_ns` beside the µs fields, which are rounded (halves up). Read back, ns win if they round to the µs field; else the µs field wins and a note says so. 0 µs without ns is unknown. A `Timing` holds `start_ns` and `end_ns` in blocks: one a rank if measured, one a class of ranks if folded.

## Job

| field | meaning |
|---|---|
| `traces` | the distinct programs |
| `ranks`, `trace_of` | the ranks that are present, ascending, and which trace each runs |
| `world_size` | ranks of the whole run; those present may be fewer |
| `groups` | ordered members and source name of each group; members may be unknown |
| `group_start`, `group_of` | group bound to each group slot, rank by rank |
| `peer_start`, `peer_of` | rank bound to each peer slot, rank by rank |
| `id_base`, `tag_base` | added to a trace's ids and tags (tags of -1 are none) |
| `values` | rank -> column -> values of its own, for {values} |
| `metadata`, `metadata_of` | distinct GlobalMetadata messages, and which one each rank has |
| `timing` | recorded times, if any |
| `notes` | what a reader noticed and did not refuse |

"""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *(list(r) for r in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def columns() -> str:
    rows = []
    for c in schema.NODE:
        default = "`UNKNOWN`" if c.default == schema.UNKNOWN else f"`{c.default}`"
        attr = f"`{c.attr}` ({c.attr_kind.wire_name})" if c.attr else ""
        rows.append((f"`{c.name}`", c.dtype, c.unit, c.doc, default, attr))
    return table(("column", "type", "unit", "meaning", "if not recorded", "attribute in `.et`"), rows)


def members(enum: type[IntEnum], wire: dict[IntEnum, int] | None = None) -> str:
    head = ("value", "name", *(("on the wire",) if wire is not None else ()))
    return table(
        head, ((str(int(m)), f"`{m.name}`", *((str(wire.get(m, "")),) if wire is not None else ())) for m in enum)
    )


def page() -> str:
    parts = [HEAD, columns(), EDGES, members(schema.Why), ATTRIBUTES.replace("{values}", _values())]
    parts += ["## Enums\n\nInternal numbers start at NONE = 0 and are never those of the wire.\n"]
    parts += ["\n### Kind\n\n", members(schema.Kind, dict(schema.KIND_TO_WIRE))]
    parts += ["\n### Collective\n\n", members(schema.Collective, dict(schema.COLLECTIVE_TO_WIRE))]
    parts += ["\n### LaneKind\n\n", members(schema.LaneKind)]
    parts += ["\n### ValueKind\n\nThe field number on the wire is the value plus 2.\n\n", members(schema.ValueKind)]
    return "".join(parts)


def _values() -> str:
    return ", ".join(f"`{c}`" for c in VALUE_COLUMNS)


def main(argv: list[str]) -> int:
    made = page()
    if "--check" in argv:
        return 0 if PAGE.read_text() == made else 1
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
