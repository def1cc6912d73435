"""Heaps against plain lists, of which the least is taken."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.kernels import heap

KEYS = st.integers(-4, 4)
"""Few, so that many are equal."""


@settings(deadline=None)
@given(st.lists(st.none() | KEYS, max_size=40))
def test_the_least_key_comes_first(steps):
    """A step pushes a key, or pops where it is None."""
    made, naive = heap.empty_heap(40), []
    for item, key in enumerate(steps):
        if key is not None:
            heap.push(made, key, item)
            naive.append((key, item))
        elif naive:
            least = min(key for key, _ in naive)
            assert made.entry[0, heap.KEY] == least
            out = heap.pop(made)
            assert (least, out) in naive
            naive.remove((least, out))
        assert made.size[0] == len(naive)


@settings(deadline=None)
@given(st.lists(KEYS, max_size=30), st.integers(0, 3))
def test_keys_alone_come_out_in_order_and_nothing_around_them_is_touched(keys, first):
    room = np.full(40, 99, np.int64)
    part = room[first : first + len(keys)]
    for size, key in enumerate(keys):
        heap.push_key(part, size, key)
    assert [heap.pop_key(part, size) for size in range(len(keys), 0, -1)] == sorted(keys)
    assert (room[:first] == 99).all()
    assert (room[first + len(keys) :] == 99).all()


@settings(deadline=None)
@given(st.lists(st.none() | st.tuples(st.integers(0, 7), KEYS, st.integers(0, 2)), max_size=60), st.booleans())
def test_a_queue_gives_items_by_key_and_turn_as_they_were_put_last(steps, fractions):
    """A step puts an item, or takes the first where it is None. Turns are numbered, so no two items are alike."""
    queue, naive = heap.empty_queue(8, np.float64 if fractions else np.int64), {}
    for number, step in enumerate(steps):
        if step is not None:
            item, key, turn = step
            naive[item] = (key / 3 if fractions else key, 1000 * turn + number)
            heap.put(queue, item, *naive[item])
        elif naive:
            first = min(naive, key=lambda item: naive[item])
            assert heap.take(queue) == first
            del naive[first]
        queued = queue.item[: queue.size[0]].tolist()
        assert sorted(queued) == sorted(naive)
        assert [queue.place[item] for item in queued] == list(range(len(queued)))
        assert (np.delete(queue.place, queued) == -1).all()


def test_of_equal_keys_and_turns_the_one_that_lies_higher_stays():
    queue = heap.empty_queue(3)
    for item in (2, 0, 1):
        heap.put(queue, item, 5, 0)
    assert queue.item.tolist() == [2, 0, 1]
    heap.put(queue, 1, 5, 0)  # the same again changes nothing
    assert queue.item.tolist() == [2, 0, 1]
