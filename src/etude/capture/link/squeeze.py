"""JSON text without the space between its values: of an indented file that is most of it, and need not be kept."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from etude.capture.link import squeeze_kernels as k
from etude.kernels.arrays import U8
from etude.model.text import PAD, words


def squeezed(pieces: Iterable[bytes], room: int = 1 << 20) -> tuple[U8, int]:
    """(heap, size) of a JSON text that comes in pieces. It means the same, but for positions in it. `room`: bytes that
    are expected; what is not used takes no memory."""
    heap, used, state = np.empty(room + k.SLACK, np.uint8), 0, np.zeros(3, np.int64)
    for piece in pieces:
        if used + len(piece) + k.SLACK > len(heap):
            bigger = np.empty(2 * len(heap) + len(piece) + k.SLACK, np.uint8)
            bigger[:used] = heap[:used]
            heap = bigger
        source = np.frombuffer(piece if len(piece) > PAD else piece.ljust(PAD + 1, b"\0"), np.uint8)
        used = int(k.squeeze(k.SqueezedPiece(source, words(source), len(piece)), heap, words(heap), used, state))
    heap[used : used + PAD] = 0
    return heap[: used + PAD], used
