"""The text that nccl-tests print: sizes and times, and the devices of the ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from etude.base.errors import FormatError

MARK: Final = re.compile(rb"#\s+size\s+count\s+type")
_RANK: Final = re.compile(r"#\s+Rank\s+(\d+).*?\bon\s+(\S+)\s+device\s+\d+\s+\[\S+\]\s*(.*)")
_TEST: Final = re.compile(r"\b([a-z]+(?:_[a-z]+)?)_perf\b")
NAMES: Final = {"alltoall": "all_to_all", "sendrecv": "send_recv"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclLine:
    """A line: `bytes` of the collective, time of a call out of place."""

    collective: str
    """Empty: the text does not say."""
    size_bytes: int
    time_us: float
    gpus: int
    per_node: int
    gpu: str


def is_nccl_tests(head: bytes) -> bool:
    return MARK.search(head) is not None


def read_nccl_tests(path: Path) -> list[NcclLine]:
    text = path.read_text("utf-8", errors="replace")
    ranks = {int(found[1]): (found[2], found[3].strip()) for found in _RANK.finditer(text)}
    hosts = {host for host, _ in ranks.values()}
    if not ranks:
        raise FormatError("does not list its ranks", path=path, hint="keep the lines `# Rank 0 ...` of nccl-tests")
    gpus, gpu, per_node = len(ranks), ranks[min(ranks)][1], len(ranks) // len(hosts)
    named = _TEST.search(text)
    stated = NAMES.get(named[1], named[1]) if named else ""
    found = []
    for line in text.splitlines():
        cells = line.split()
        if len(cells) < 8 or not cells[0].isdecimal() or not cells[1].isdecimal():
            continue
        try:
            time_us, bus, wire = float(cells[5]), float(cells[7]), float(cells[6])
        except ValueError:
            continue
        kind = stated or _collective(cells[3], bus / wire if wire else 0.0, gpus)
        found.append(
            NcclLine(collective=kind, size_bytes=int(cells[0]), time_us=time_us, gpus=gpus, per_node=per_node, gpu=gpu)
        )
    if not found:
        raise FormatError("has no line of results", path=path)
    known = {one.collective for one in found if one.collective}
    if len(known) == 1:  # lines of a few bytes have no bandwidth that shows it
        kind = known.pop()
        found = [NcclLine(**{**{k: getattr(one, k) for k in one.__slots__}, "collective": kind}) for one in found]
    return found


def _collective(reduction: str, ratio: float, gpus: int) -> str:
    """By the factor from algorithm to bus bandwidth, if that is enough: 2 (n - 1) / n is an all-reduce, (n - 1) / n
    with a reduction a reduce-scatter. Gathers and all-to-alls look the same."""
    part = (gpus - 1) / gpus
    if gpus > 1 and abs(ratio / (2 * part) - 1) < 0.05 and reduction != "none":
        return "all_reduce"
    if gpus > 2 and abs(ratio / part - 1) < 0.05 and reduction != "none":
        return "reduce_scatter"
    return ""
