"""Requests predicted by `etude serve`, in the columns of measured ones: `--requests-out FILE`, or the folder of
`-o`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from etude.base.results import TableSchema, read_table
from etude.base.shapes import COUNT, SECONDS, of_each
from etude.capture.ingest.requests.measured import MeasuredRequests, completed, floats

FILE: Final = "requests.parquet"
TABLE: Final = TableSchema(
    of_each(COUNT, "request prompt output cache_hit_tokens")
    | of_each(SECONDS, "arrival_s first_token_s finish_s queued_s scheduled_s"),
    ordered=(("arrival_s", "first_token_s", "finish_s"),),
)
KNOWN: Final = {"etude served": 2, "etude images": 2, "etude requests": 1}
HINT: Final = "etude serve ... --requests-out FILE"


def is_served(path: Path) -> bool:
    if path.is_dir():
        return (path / FILE).is_file()
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def read_served(path: Path) -> MeasuredRequests:
    found = read_table(path / FILE if path.is_dir() else path, TABLE, "predicted requests", hint=HINT, known=KNOWN)
    time = {name: floats(found, name) for name in TABLE.columns if name.endswith("_s")}
    table = completed(
        pa.table(
            {
                "request": found["request"].cast(pa.string()),
                "arrival_s": found["arrival_s"],
                "queue_s": time["scheduled_s"] - time["queued_s"],
                "prefill_s": time["first_token_s"] - time["scheduled_s"],
                "ttft_s": time["first_token_s"] - time["arrival_s"],
                "latency_s": time["finish_s"] - time["arrival_s"],
                "prompt": found["prompt"],
                "output": found["output"],
                "cached": found["cache_hit_tokens"],
                "itl_s": pa.nulls(len(found), pa.list_(pa.float64())),
            }
        )
    )
    span = float(time["finish_s"].max() - np.min(time["arrival_s"])) if len(found) else None
    return MeasuredRequests(table=table, source="etude serve", duration_s=span)
