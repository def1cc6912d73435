"""Records that Python hands to kernels: by address, and nothing of them is lost or kept."""

import gc
import sys

import numpy as np
import pytest

from etude.kernels.compile import kernel
from etude.kernels.heap import Heap, Queue


def nested() -> Queue:
    """Records in a record, and scalars and a tuple beside them: a kernel looks at what it is given, not at hints."""
    return Queue(Heap(np.arange(6).reshape(3, 2), np.array([2])), 7, 1.5, True, (np.arange(3.0), 4))


@kernel
def _inside(record):
    return record.size[0] + record[0][2, 1]


@kernel
def _sum(record, other, scale):
    either = record.item if scale > 0 else other
    return scale * (_inside(either) + record.place) + record.key + record.turn + record.size[0][2] + record.size[1]


@kernel
def _entries(record):
    return record.item.entry


@kernel
def _whole(record):
    return record


@kernel
def _made(record):
    return Heap(record.item.entry + 1, record.item.size)


def test_fields_of_records_in_records_are_read() -> None:
    assert _sum(nested(), Heap(np.zeros((3, 2), int), np.array([1])), 10) == 10 * (2 + 5 + 7) + 1.5 + 1 + 2.0 + 4
    assert _sum(nested(), Heap(np.zeros((3, 2), int), np.array([1])), -1) == -(1 + 0 + 7) + 1.5 + 1 + 2.0 + 4


def test_arrays_outlive_the_record_they_came_from() -> None:
    found = _entries(nested())
    gc.collect()
    assert found.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_a_record_comes_back_as_it_went() -> None:
    given = nested()
    back = _whole(given)
    assert isinstance(back, Queue)
    assert isinstance(back.item, Heap)
    assert back.item.entry.tolist() == given.item.entry.tolist()
    assert back[1:4] == given[1:4]
    made = _made(given)
    assert isinstance(made, Heap)
    assert made.entry[0].tolist() == [1, 2]


@pytest.mark.parametrize("call", [_entries, _whole, _made, lambda record: _sum(record, record.item, 1)])
def test_no_reference_is_kept(call) -> None:
    given = nested()
    call(given)
    before = sys.getrefcount(given.item.entry)
    for _ in range(20):
        call(given)
    after = sys.getrefcount(given.item.entry)
    assert after == before


def test_fields_of_other_types_are_another_record() -> None:
    assert _inside(Heap(np.arange(6.0).reshape(3, 2), np.array([1]))) == 6.0
    assert _inside(Heap(np.arange(6).reshape(3, 2), np.array([1]))) == 6
