"""Tables of records: the same memory for kernels, for NumPy and for plain Python."""

import numpy as np
import pytest

from etude.kernels.compile import kernel
from etude.kernels.kinds import kinds, text
from etude.kernels.rows import TableRows, field_of, record

QUEUE = record("first", "last")
PLACE = record("end_ns", ("queue", QUEUE), "count")


@kernel(allocates=False)
def put(places, i, r):
    mine = places[i]
    mine.count += 1
    mine.queue.last = r
    if mine.count == 1:
        mine.queue.first = r
        mine.end_ns = 1000 + r
    return mine.queue.first + mine.count


def test_a_kernel_and_its_plain_form_write_the_same() -> None:
    compiled, plain = np.zeros(3, PLACE), np.zeros(3, PLACE)
    rows = TableRows(plain)
    for i, r in ((1, 7), (1, 5), (2, 9), (np.int64(1), np.int64(4))):
        assert put(compiled, i, r) == put.py_func(rows, i, r)
    assert plain.tolist() == compiled.tolist() == [(0, (0, 0), 0), (1007, (7, 4), 3), (1009, (9, 9), 1)]
    assert (len(rows), rows[1].queue.last, rows[1].count, type(rows[1].count)) == (3, 4, 3, int)


def test_rows_are_the_memory_of_the_table() -> None:
    table = np.zeros(2, PLACE)
    rows = TableRows(table)
    rows[0].queue.last = np.int64(2**62)
    table["count"] = [5, 6]
    assert (table["queue"]["last"].tolist(), rows[0].count, rows[1].count) == ([2**62, 0], 5, 6)
    assert len(TableRows(table[:0])) == 0
    with pytest.raises(IndexError):
        rows[2]
    with pytest.raises(AttributeError):
        rows[0].counts = 1
    with pytest.raises(TypeError):
        rows[0].count = 1.5


def test_fields_are_part_of_the_kind_of_an_argument() -> None:
    other = record("end_ns", ("queue", QUEUE), "counted")
    told = {text(kinds((np.zeros(2, kind),))[0]) for kind in (PLACE, other, record("end_ns", "first", "last", "count"))}
    assert len(told) == 3 and PLACE.itemsize == other.itemsize == 32


def test_a_time_is_found_without_its_unit() -> None:
    assert [field_of(PLACE, name) for name in ("COUNT", "END", "end_ns")] == ["count", "end_ns", "end_ns"]
