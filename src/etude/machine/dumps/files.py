"""Which dump a file is, and its graph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from etude.base.errors import ClusterError, FormatError, in_file
from etude.base.units import parse_time
from etude.machine.dumps.ibnet import LATENCY_NS, read_ibnet
from etude.machine.dumps.nccl import nodes_asked, read_nccl
from etude.machine.infragraph.annotations import AnnotatedTopology

Sort = Literal["nccl", "ibnet"]
KEYS: Final[dict[Sort, tuple[str, ...]]] = {"nccl": ("nodes", "rails", "latency"), "ibnet": ("tables", "latency")}
"""Keys of a system's file that each reads."""
_HEAD: Final = 1 << 16


def sort_of(path: Path) -> Sort | None:
    """By content; None: something else."""
    with open(path, "rb") as file:
        head = file.read(_HEAD)
    if re.search(rb"<system[\s>]", head):
        return "nccl"
    return "ibnet" if re.search(rb'^(Switch|Ca)\s+\d+\s+"[SH]-', head, re.MULTILINE) else None


def read_dump(path: Path, sort: Sort, given: Mapping[str, Any]) -> AnnotatedTopology:
    """`given`: the keys of a system's file that are about the dump."""
    with in_file(str(path)):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise FormatError(f"cannot be read: {problem}") from None
        if sort == "nccl":
            topology = read_nccl(text, path.stem, nodes_asked(given))
        else:
            topology = read_ibnet(text, path.stem, _tables(path, given), _latency_ns(given))
    return AnnotatedTopology(topology, ({},), np.zeros(len(topology), np.int32))


def _tables(path: Path, given: Mapping[str, Any]) -> str | None:
    if "tables" not in given:
        return None
    beside = path.parent / str(given["tables"])
    try:
        return beside.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ClusterError(f"tables: cannot be read: {problem}", where=str(beside)) from None


def _latency_ns(given: Mapping[str, Any]) -> int:
    return round(parse_time(str(given["latency"]))) if "latency" in given else LATENCY_NS
