"""A timeline file: Perfetto or Chrome JSON, by its name."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from etude.model.run import Run
from etude.tell.view import chrome, perfetto
from etude.tell.view.flows import SliceFlows, flows_of, running
from etude.tell.view.path import path_of
from etude.tell.view.slices import Slices, slices_of

__all__ = ["write_timeline"]


def write_timeline(
    run: Run, path: Path, *, ranks: Sequence[int] | None = None, flows: bool = True,
    counters: bool = True, critical: pa.Table | None = None,
) -> Slices:  # fmt: skip
    """Writes `.json`, `.json.gz` or, under any other name, a Perfetto trace; returns the slices. `critical` is the
    critical path, which gets a track of its own."""
    job, slices = run.job, slices_of(run, ranks)
    none = SliceFlows(np.zeros(len(slices) + 1, np.int64), np.zeros(0, np.int64))
    arrows = flows_of(job, slices) if flows else none
    over_time = running(slices) if counters else []
    waited = path_of(job, slices, critical)
    if path.name.endswith(".json.gz"):
        with gzip.GzipFile(path, "wb", compresslevel=5, mtime=0) as packed:
            chrome.write(job, slices, arrows, over_time, waited, packed)  # type: ignore[arg-type]
    else:
        form = chrome if path.suffix == ".json" else perfetto
        with path.open("wb") as file:
            form.write(job, slices, arrows, over_time, waited, file)
    return slices
