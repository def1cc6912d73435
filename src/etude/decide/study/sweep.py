"""Tasks carried out once each, and what is read of their answers."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from etude.decide.study.expressions import evaluated
from etude.decide.study.results import Results
from etude.decide.study.tasks import Answer

if TYPE_CHECKING:
    import pyarrow as pa

Advance = Callable[[int], None]


class Keyed(Protocol):
    """Commands of a point, or a call of a function."""

    @property
    def key(self) -> str: ...
    def shown(self) -> str: ...


Work = TypeVar("Work", bound=Keyed)
Runs = Callable[[Sequence[Work]], Iterator[tuple[Work, Answer]]]


def carry_out(tasks: Iterable[Work], results: Results, run: Runs[Work], advance: Advance = lambda n: None) -> int:
    """Each task whose answer is not known yet, once; how many those were."""
    missing: dict[str, Work] = {}
    known = 0
    for task in tasks:
        if task.key in results:
            known += 1
        else:
            missing.setdefault(task.key, task)
    advance(known)
    for task, found in run(list(missing.values())):
        results.keep(task.key, task.shown(), found)
        advance(1)
    return len(missing)


def table_of(rows: Sequence[dict[str, Any]]) -> "pa.Table":
    """Rows as a table. A column of mixed kinds is a column of texts, one with records in it is JSON."""
    import pyarrow as pa

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns: dict[str, Any] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        if any(
            isinstance(v, dict) or (isinstance(v, list) and any(isinstance(x, dict | list) for x in v)) for v in values
        ):
            values = [None if v is None else json.dumps(v) for v in values]
        if any(isinstance(v, float) for v in values) and all(isinstance(v, int | float | None) for v in values):
            values = [None if v is None else float(v) for v in values]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            columns[name] = pa.array([None if v is None else str(v) for v in values], pa.string())
    return pa.table(columns)


def metric_of(expression: str, names: Sequence[str], found: Answer, where: str) -> Any:
    """What a metric reads in an answer: keys of the last command's JSON, or of a command by its name."""
    records: dict[str, Any] = {}
    codes, texts = {}, {}
    for name, one in zip(names, found["answers"], strict=False):
        codes[name], texts[name] = one["code"], one["out"]
        try:
            records[name] = json.loads(one["out"]) if one["out"].strip() else {}
        except ValueError:
            records[name] = {"text": one["out"]}
    last = records.get(names[-1])
    top = last if isinstance(last, dict) else {"rows": last}
    value = evaluated(expression, {**top, **records, "code": lambda n: codes[n], "text": lambda n: texts[n]}, where)
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
