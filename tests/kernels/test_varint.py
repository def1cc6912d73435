"""Varints against the digits of a number in base 128, and against one another."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.kernels.varint import decode_varint, encode_varint, put_varint, read_varint, varint_length

NUMBERS = st.integers(0, 2**64 - 1) | st.integers(0, 300) | st.integers(0, 63).map(lambda bits: 2**bits)


def naive(number: int) -> bytes:
    digits = [number % 128]
    while number >= 128:
        number //= 128
        digits.append(number % 128)
    return bytes([digit + 128 for digit in digits[:-1]] + digits[-1:])


@settings(deadline=None)
@given(NUMBERS, st.binary(max_size=3))
def test_both_writers_write_and_both_readers_read_the_same(number, behind):
    raw = naive(number)
    assert encode_varint(number) == raw
    out = np.full(20, 7, np.uint8)
    assert put_varint(out, 2, np.uint64(number)) == 2 + len(raw)
    assert out.tobytes() == b"\x07\x07" + raw + b"\x07" * (18 - len(raw))
    assert varint_length(np.uint64(number)) == len(raw)
    data = np.frombuffer(b"\xff" + raw + behind, np.uint8)
    assert decode_varint(data.tobytes(), 1) == (number, 1 + len(raw))
    assert read_varint(data, 1, len(data)) == (number, 1 + len(raw))
    assert read_varint(data, 1, len(raw))[1] == -1  # one byte short


def test_a_negative_number_is_written_as_its_64_bits():
    assert encode_varint(-1) == naive(2**64 - 1)
    assert encode_varint(-(2**63)) == naive(2**63)


def test_a_number_may_have_bytes_too_many_but_not_more_than_ten():
    assert read_varint(np.frombuffer(b"\x81\x80\x80\x00", np.uint8), 0, 4) == (1, 4)
    assert decode_varint(b"\x81\x80\x80\x00", 0) == (1, 4)
    assert read_varint(np.full(12, 0x80, np.uint8), 0, 12)[1] == -1


def test_bytes_that_end_before_the_number_does():
    assert read_varint(np.zeros(0, np.uint8), 0, 0)[1] == -1
    with pytest.raises(IndexError):
        decode_varint(b"\x80", 0)
