import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import naive_text
from etude.kernels.varint import encode_varint
from etude.model import text

WORDS = st.lists(
    st.one_of(st.none(), st.text(max_size=40), st.sampled_from(["", "a", "aten::mm", "x" * 300])), max_size=60
)


def test_a_slice_is_its_length_and_its_bytes() -> None:
    writer = text.HeapWriter()
    at = writer.put("gemm"), writer.put("é" * 100), writer.put("gemm")
    heap = writer.heap()
    assert at == (0, 5, 0)
    assert heap[:5].tobytes() == b"\x04gemm"
    assert heap[5:7].tobytes() == b"\xc8\x01"  # 200 as a varint
    assert text.strings(heap, at) == ["gemm", "é" * 100, "gemm"]
    assert len(heap) == 5 + 202 + text.PAD


def test_codes_count_by_first_appearance_and_absent_is_minus_one() -> None:
    writer = text.HeapWriter()
    offsets = writer.put_all(["b", None, "a", "b", ""])
    codes, unique = text.intern(writer.heap(), offsets)
    assert codes.tolist() == [0, -1, 1, 0, 2]
    assert text.strings(writer.heap(), unique) == ["b", "a", ""]


@given(WORDS)
@settings(deadline=None)
def test_intern_agrees_with_a_dict(words: list[str | None]) -> None:
    # every string at a place of its own, so that equal ones must be found by their bytes
    heap, offsets = bytearray(), []
    for w in words:
        offsets.append(-1 if w is None else len(heap))
        if w is not None:
            raw = w.encode()
            heap += encode_varint(len(raw)) + raw
    padded = text.pad(bytes(heap))
    codes, unique = text.intern(padded, np.array(offsets, np.int64))
    assert (codes.tolist(), text.strings(padded, unique)) == naive_text.intern(words)
    gathered, at = text.gather(padded, unique)
    assert text.strings(gathered, at) == text.strings(padded, unique)


def test_more_strings_than_the_first_table_holds() -> None:
    words = [f"tensor {i % 9000}" for i in range(20_000)]
    writer = text.HeapWriter()
    codes, unique = text.intern(_heap(writer, words), writer.put_all(words))
    assert len(unique) == 9000
    assert codes.tolist() == [i % 9000 for i in range(20_000)]


def _heap(writer: text.HeapWriter, words: list[str]) -> np.ndarray:
    writer.put_all(words)
    return writer.heap()
