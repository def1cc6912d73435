"""JSON values as Python's `str()` shows them: the kernel against Python."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.capture.link.python_text import PythonTexts
from etude.capture.link.scan import Json
from etude.model.text import pad, string

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1e-3, 1e-3)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=6), lambda inner: st.lists(inner, max_size=4), max_leaves=12
)


def shown(text: str) -> str:
    raw = text.encode()
    texts = PythonTexts(Json(pad(raw), len(raw), "x.json"))
    offset = int(texts.put_all(np.zeros(1, np.int64))[0])
    return string(texts.heap(), offset)


@given(st.lists(VALUES, max_size=5))
def test_lists_are_shown_as_python_shows_them(values: list[Any]) -> None:
    assert shown(json.dumps(values)) == str(values)


@pytest.mark.parametrize(
    "number",
    ["0.000010", "0.00001", "-0.0000125", "0.0001", "0.00010", "0.000099999", "0.00001234567890123456", "0.000000000",
     "1.50", "-0.0", "5.00", "0.1", "1e-8", "1.0000000000000001e-05", "0.00000000000000000000000000000000000000012"],
)  # fmt: skip
def test_numbers(number: str) -> None:
    assert shown(f"[{number}, true, false, null]") == f"[{float(number)}, True, False, None]"
