"""Chakra traces as JSON, both ways: one file a rank, `name.{rank}.json`, with its groups in `name.json`.

    {"metadata": {...},
     "nodes": [
    {"id":"7","name":"aten::mm","type":"COMP_NODE","dataDeps":["5"],"attr":[{"name":"rf_id","int64Val":"12"}]},
    ...]}

Each message is in the JSON mapping of protobuf (lowerCamelCase, 64-bit integers as strings, enums by name, bytes in
base64), so `google.protobuf.json_format` reads it. What that mapping cannot say stands under keys of our own, so that
`.et` to JSON to `.et` gives the same bytes: `_unknown` (fields newer than the schema), `_payload` (a list in an
unusual encoding), `_bits` (a NaN that is not the usual one), `_raw` (metadata in an unusual encoding).

Also read: the concatenated objects that Chakra's own jsonizer writes, and the feeder's `workload_graph`. JSON is for
exchange: this is the one store that makes Python objects of single nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import FormatError, UsageError
from etude.model.job import Job
from etude.store import chakra, compressed
from etude.store.et_decode import Decoded, decode
from etude.store.json_read import to_messages
from etude.store.json_write import lines

SUFFIXES = (".json", ".json.gz", ".json.zst")


def write_job(
    job: Job,
    folder: Path,
    *,
    name: str = "",
    suffix: str = ".json",
    advance: Callable[[int], None] = lambda amount: None,
) -> None:
    """`name.{rank}.json` for every rank, and `name.json` with the groups if there are any, into an existing folder."""
    if suffix not in SUFFIXES:
        raise UsageError(f"`{suffix}` is not a kind of JSON file", hint=f"known: {', '.join(SUFFIXES)}")
    chakra.write_ranks(job, folder, name or job.name, suffix, _pieces, advance)


def _pieces(found: Decoded, *, id_base: int, tag_base: int) -> Iterator[NDArray[np.uint8]]:
    return (np.frombuffer(p.encode(), np.uint8) for p in lines(found, id_base=id_base, tag_base=tag_base))


def read_job(
    path: str | Path,
    *,
    groups: str | Path | None = None,
    workers: int = 1,
    max_bytes: int | None = None,
    advance: Callable[[int], None] = lambda amount: None,
) -> Job:
    """The ranks found at `path`: a folder of `name.{rank}.json`, one such file, or the prefix `folder/name`.

    `workers` is there for the sake of the other readers: objects are made under Python's lock, one rank at a time.
    """
    name, files = chakra.find_ranks(Path(path), SUFFIXES)
    table = chakra.group_file(name, files, groups)
    decoded = []
    for file in files.values():
        heap, size = compressed.load(file, max_bytes)
        decoded.append(read(heap.data[:size], str(file)))
        advance(1)
    return chakra.join(name, list(files), decoded, table, source_format="chakra json")


def read(data: bytes | memoryview, where: str = "") -> Decoded:
    """Reads one file in any of the three forms. `where` names it in errors."""
    _refuse_profiles(bytes(data[:4096]), where)
    messages = to_messages(data, where)
    try:
        return decode(messages.data, where)
    except FormatError as problem:  # from a key of our own
        at = messages.path(problem.offset or 0)
        raise FormatError(problem.problem, path=where, where=f"at `{at}`", hint=problem.hint) from None


def _refuse_profiles(head: bytes, where: str) -> None:
    """Refuses profiler output, which is JSON with similar names, with a message that says what it is."""
    hint = "Chakra `.et` and JSON are read; profiler output must be linked into a trace first"
    if re.search(rb'"(traceEvents|schemaVersion)"\s*:', head):
        raise FormatError("is a profiler trace (Kineto, Chrome), not a Chakra trace", path=where, offset=0, hint=hint)
    if re.search(rb'"schema"\s*:', head) and re.search(rb'"pid"\s*:', head):
        raise FormatError("is a host trace of PyTorch's observer, not a Chakra trace", path=where, offset=0, hint=hint)
