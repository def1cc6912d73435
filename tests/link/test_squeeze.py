"""JSON text without the space between its values means the same, however it is cut into pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.capture.link.squeeze import squeezed

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(['a "b" c', "\\", '\\"', "  \n  "])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def squeeze(text: bytes, size: int) -> bytes:
    heap, used = squeezed((text[at : at + size] for at in range(0, len(text), size)), room=0)
    assert not heap[used:].any() and len(heap) >= used + 8
    return heap[:used].tobytes()


@given(VALUES, st.integers(1, 40), st.sampled_from([None, 0, 1, 4, "\t", "\r\n "]))
def test_a_squeezed_text_is_the_compact_one(value: Any, size: int, indent: Any) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=False).encode()
    assert squeeze(text, size) == json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b" [ 1 , 2 ] \n", b"[1,2]"),
        (b"1 2", b"1 2"),  # not a value, and it must not become one
        (b"[tr \n ue]", b"[tr ue]"),
        (b'{"a  b" : "c\\" d"}', b'{"a  b":"c\\" d"}'),
        (b'["cut  short', b'["cut  short'),
        (b"[\0 1]", b"[\0 1]".replace(b" ", b"")),
        (b"", b""),
    ],
)
def test_by_hand(text: bytes, wanted: bytes) -> None:
    for size in (1, 3, 100):
        assert squeeze(text, size) == wanted
