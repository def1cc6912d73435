"""Sequences of kernels that come again: hand-worked streams, and a naive twin on random ones."""

import random

import pytest

from etude.analyse.patterns import patterns
from etude.model.run import Run
from etude.model.schema import Kind
from timed_jobs import timed


def stream(letters: str, number: int = 7) -> list[tuple[dict[str, object], int, int]]:
    """Kernels one after the other, each 10 ns."""
    kernel = {"kind": Kind.COMP, "stream": number, "cpu": 0}
    return [(kernel | {"name": letter}, 10 * i, 10 * i + 10) for i, letter in enumerate(letters)]


def found(run: Run, longest: int) -> dict[str, tuple[int, int]]:
    return {"".join(r["names"]): (r["count"], r["time_ns"]) for r in patterns(run, longest=longest).to_pylist()}


def test_a_row_of_four_holds_its_pair_twice() -> None:
    assert found(timed(stream("AAAA")), 2) == {"AA": (2, 40)}


def test_a_row_of_seven() -> None:
    """AA at 0, 2, 4; AAA at 0, 3; AAAA fits once and is no pattern."""
    assert found(timed(stream("AAAAAAA")), 8) == {"AA": (3, 60), "AAA": (2, 60)}


def test_occurrences_of_one_sequence_do_not_share_a_kernel() -> None:
    """ABA at 0 and, overlapping it, at 2; then at 5: two that can both run."""
    assert found(timed(stream("ABABAABA")), 3)["ABA"] == (2, 60)


def test_the_next_free_occurrence_counts() -> None:
    """AA at 0 takes the second A; the next that is free is at 3."""
    assert found(timed(stream("AAABAAB")), 2)["AA"] == (2, 40)


def test_streams_are_apart() -> None:
    run = timed([*stream("AB", 7), *stream("AB", 8), *stream("A", 9), *stream("B", 10)])
    assert found(run, 4) == {"AB": (2, 40)}


def naive(letters: str, longest: int) -> dict[str, int]:
    """`str.count` counts from the left without overlap."""
    every = {letters[i : i + n] for n in range(2, longest + 1) for i in range(len(letters) - n + 1)}
    count = {one: letters.count(one) for one in every if letters.count(one) > 1}
    part = {p for one in count for p in (one[1:], one[:-1]) if count.get(p, 1 << 60) <= count[one]}
    return {one: n for one, n in count.items() if one not in part}


@pytest.mark.parametrize("seed", range(12))
def test_counts_are_those_of_a_text_search(seed: int) -> None:
    rng = random.Random(seed)
    letters = "".join(rng.choice("ABC"[: rng.choice([2, 3])]) for _ in range(rng.randrange(2, 60)))
    assert {name: n for name, (n, _) in found(timed(stream(letters)), 5).items()} == naive(letters, 5)
