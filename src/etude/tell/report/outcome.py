"""What the page of an outcome is made from: its record and its tables, over which its numbers are expressions.

    record[0].ttft_s_p50
    mean(requests.finish_s - requests.arrival_s)

`record` has one row with all figures of the record, those inside others with both names; lists of rows in it are tables
of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from etude.analyse.expressions import evaluate
from etude.tell.report import words
from etude.tell.view.sentences import Asked, Sentence

__all__ = ["OutcomeSubject"]

_LARGEST: Final = 1e300


@dataclass(frozen=True)
class OutcomeSubject:
    record: Mapping[str, Any]
    files: Mapping[str, pa.Table]

    @cached_property
    def tables(self) -> dict[str, pa.Table]:
        found = {"record": _rows([_flat(self.record)])}
        for name, value in self.record.items():
            if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
                found[name] = _rows([_flat(one) for one in value])
        return {**found, **self.files}

    def table(self, name: str) -> pa.Table:
        if name not in self.tables:
            raise KeyError(", ".join(self.tables))
        return self.tables[name]

    def ask(self, query: str) -> Any:
        """The value of an expression over these tables."""
        return evaluate(query, self.table)

    def value(self, form: str, query: str) -> Sentence:
        """The value of an expression as it is printed, with the expression."""
        value = self.ask(query)
        return Sentence.of(Asked(words.formatted_as(form, value), query, form, value))

    def figure(self, form: str, name: str) -> Sentence:
        """A figure of the record."""
        return self.value(form, f"record[0].{name}")

    def facts(self, name: str = "asked") -> tuple[tuple[str, str], ...]:
        """What was asked, as it was given."""
        given = self.record.get(name, {})
        known = self.tables["record"].column_names
        return tuple(
            (str(key), self.figure("text", f"{name}_{key}") if f"{name}_{key}" in known else str(value))
            for key, value in given.items()
            if value != ""
        )


def _flat(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Single values, by their names; those that are no names are left out."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        full = f"{before}{name}"
        if isinstance(value, Mapping):
            found |= _flat(value, f"{full}_")
        elif full.isidentifier() and (value is None or isinstance(value, (int, float, str))):
            found[full] = value
    return found


def _rows(rows: list[dict[str, Any]]) -> pa.Table:
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pa.Array:
    """Values of one type; of several types as they are written, and whole numbers beyond 64 bits as others."""
    try:
        return pa.array(values)
    except OverflowError:
        numbers = all(value is None or (isinstance(value, (int, float)) and abs(value) < _LARGEST) for value in values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        numbers = False
    return pa.array([None if value is None else float(value) if numbers else str(value) for value in values])
