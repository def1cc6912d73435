"""Packed files: read at once where they are large and plain, piece by piece where they are anything else."""

import gzip

import numpy as np
import pytest

from etude.base.errors import EtudeError
from etude.store.compressed import _at_once, load, unpack

NOISE = np.random.default_rng(5).integers(0, 256, 1_500_000, np.uint8).tobytes()
TEXT = NOISE + b'{"name": "a"}, ' * 100_000


def packed(content: bytes) -> bytes:
    return gzip.compress(content, 1, mtime=0)


def whole(data: bytes, max_bytes: int | None = None) -> bytes:
    heap, size = unpack(data, "x", max_bytes)
    assert not heap[size:].any() and len(heap) > size
    return heap[:size].tobytes()


def test_a_large_file_is_what_was_packed(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(packed(TEXT))
    heap, size = load(path)
    assert heap[:size].tobytes() == TEXT and not heap[size:].any()
    assert heap.flags.writeable


@pytest.mark.parametrize("parts", [[NOISE, NOISE], [NOISE, b"", NOISE], [b"", NOISE], [NOISE, b"tail" * 9, NOISE]])
def test_members_one_after_the_other_are_all_read(parts):
    """Also where the last one has the length and the sum of the first."""
    assert whole(b"".join(packed(part) for part in parts)) == b"".join(parts)


def test_what_is_wrong_is_said():
    data = packed(TEXT)
    middle = len(data) // 2
    damaged = data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :]
    longer = data[:-4] + (len(TEXT) + 5).to_bytes(4, "little")
    shorter = data[:-4] + (len(TEXT) - 5).to_bytes(4, "little")
    other_sum = data[:-8] + bytes(4) + data[-4:]
    for wrong in (data[:-9], data[:middle], damaged, longer, shorter, other_sum, data + b"rest", data + bytes(8)):
        with pytest.raises(EtudeError, match=r"gzip|cut"):
            whole(wrong)


def test_the_limit_holds():
    assert whole(packed(TEXT), len(TEXT)) == TEXT
    with pytest.raises(EtudeError, match="limit"):
        whole(packed(TEXT), len(TEXT) - 1)


def test_at_once_is_for_large_files_of_one_member():
    assert _at_once(packed(TEXT), None) is not None
    assert _at_once(packed(b"few"), None) is None
    assert _at_once(packed(NOISE) + packed(NOISE), None) is None
    assert _at_once(packed(bytes(300 << 20)) + NOISE, None) is None
