"""Memory over time as a table: a row for each action of each pipeline rank, or for each pass of each instance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from etude.base.errors import UsageError
from etude.make.generate.schedules.pipeline import Action
from etude.make.generate.serving.job import ServedJob
from etude.make.generate.serving.program import in_turn
from etude.make.generate.train.job import Generated


def _of_training(found: Generated) -> pa.Table:
    """Bytes while each action runs: `activations` of the micro-batches in flight, `temporary` in addition."""
    schedule = found.layout.schedule
    tables = []
    for rank, memory in enumerate(found.memory):
        rows = schedule.rows(rank)
        count = rows.stop - rows.start
        fixed = {name: np.full(count, getattr(memory, name)) for name in ("weights", "optimizer")}
        tables.append(
            pa.table(
                {
                    "pipeline_rank": np.full(count, rank, np.int32),
                    "number": np.arange(count),
                    "action": [Action(a).letter for a in schedule.action[rows].tolist()],
                    "stage": schedule.stage[rows],
                    "micro_batch": schedule.micro_batch[rows],
                    **fixed,
                    "gradients": memory.present,
                    "activations": memory.activations,
                    "temporary": memory.working,
                    "total": memory.over_time(),
                }
            )
        )
    return pa.concat_tables(tables)


def _of_serving(found: ServedJob) -> pa.Table:
    """Bytes of a rank after each pass: keys and values of the active sequences, `temporary` of the pass."""
    rows = []
    for number, instance in enumerate(found.instances):
        held = [0] * len(instance.batches)
        for step, (at, k, one, _) in enumerate(in_turn(instance.batches)):
            held[at] = instance.batches[at].held[k] * found.token_bytes
            working = found.working_of(one.tokens)
            total = found.weights_bytes + sum(held) + working
            rows.append((number, step, one.phase, found.weights_bytes, sum(held), working, total))
    names = ("instance", "number", "phase", "weights", "keys_and_values", "temporary", "total")
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def memory_over_time(found: Generated | ServedJob) -> pa.Table:
    """Bytes while each action of each pipeline rank runs, or after each pass of each instance."""
    return _of_training(found) if isinstance(found, Generated) else _of_serving(found)


def check_name(path: Path) -> None:
    if path.suffix not in (".csv", ".parquet"):
        raise UsageError(f"a table cannot be written as `{path.suffix}`", where=path.name, hint="known: .csv, .parquet")


def write(table: pa.Table, path: Path) -> None:
    """As `.csv` or `.parquet`."""
    check_name(path)
    if path.suffix == ".parquet":
        from pyarrow import parquet

        parquet.write_table(table, path, compression="zstd")
        return
    from pyarrow import csv

    with path.open("wb") as file:
        file.write(",".join(table.column_names).encode() + b"\n")  # Arrow would put names in quotes
        csv.write_csv(table, file, csv.WriteOptions(include_header=False, quoting_style="none"))
