"""Recurrent networks of cuDNN: shapes of a call, and time steps that wait for one another."""

import pytest

from etude.cost.framework.recurrent import BACKWARD, FORWARD, STEP_NS, layers_of, recurrent_ns
from etude.machine.open import open_device

H200 = open_device("h200")
GATES, BIAS = (1536, 512), (1536,)
FIRST = ((1536, 300), GATES, BIAS, BIAS)
LATER = ((1536, 1024), GATES, BIAS, BIAS)
TAGGER = ((64, 100, 300), *FIRST, *FIRST, *LATER, *LATER, *LATER, *LATER, (1536, 300), (6, 64, 512))
"""A GRU of three layers, read from both sides: 64 sequences of 100 words of 300 numbers, a state of 512."""


def time_ns(name: str, shapes: tuple[tuple[int, ...], ...]) -> float:
    found = recurrent_ns(name, shapes, "fp32", H200)
    assert found is not None
    return found


def test_layers_by_the_shapes_of_a_call() -> None:
    found = layers_of(TAGGER)
    assert found is not None
    assert (found.steps, found.batch, found.columns, found.state) == (100, 64, 1536, 512)
    assert found.inputs == (300, 300, 1024, 1024, 1024, 1024)
    assert layers_of(((64, 100, 300), (1536, 300))) is None
    assert layers_of(()) is None


def test_time_steps_wait_for_one_another() -> None:
    """6 layers and directions of 100 time steps; the products for all of them at once are 3% of it."""
    time = time_ns(FORWARD, TAGGER)
    assert time == pytest.approx(600 * STEP_NS, rel=0.1)
    longer = ((64, 200, 300), *TAGGER[1:])
    assert time_ns(FORWARD, longer) == pytest.approx(2 * time, rel=0.02)
    twice = ((128, 100, 300), *TAGGER[1:-1], (6, 128, 512))
    assert time_ns(FORWARD, twice) == pytest.approx(time, rel=0.1)
    assert time_ns(BACKWARD, TAGGER) > time


def test_large_time_steps_take_their_products() -> None:
    wide = ((4096, 10, 8192), (32768, 8192), (32768, 8192), (32768,), (32768,), (32768, 8192), (1, 4096, 8192))
    flops = 2 * 4096 * 10 * 32768 * (8192 + 8192)
    assert time_ns(FORWARD, wide) > flops / 494.7e12 * 1e9


def test_kernels_of_16_bits_are_not_known() -> None:
    assert recurrent_ns(FORWARD, TAGGER, "fp16", H200) is None
    assert recurrent_ns("aten::mm", TAGGER, "fp32", H200) is None
