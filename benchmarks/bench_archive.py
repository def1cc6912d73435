"""An archive of many runs: how long it takes to add them, from several processes at a time, and to ask them all, before
and after their files are put together.

    python benchmarks/bench_archive.py                  # 2,000 runs by 2 processes
    python benchmarks/bench_archive.py --runs 500 --writers 4

The rows are made up here: 30 metrics, 80 steps and collectives and a few findings for each run, as a recorded run of
four ranks has.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from hashlib import blake2b
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import pyarrow as pa

from etude.tell.archive import TABLES, Lake, LakeEntry

ROWS = {"runs": 1, "metrics": 30, "steps": 80, "collectives": 12, "findings": 4, "cards": 20}
QUERIES = {
    "count runs": "select count(*) from runs",
    "mean of a metric by model": "select model, avg(value) from metrics join runs using (run) "
    "where metric = 'metric 3' group by model order by model",
    "slowest steps": "select run, max(span_ns) from steps group by run order by 2 desc limit 10",
    "bandwidth by collective": "select collective, median(busbw_bytes_per_s) from collectives group by 1 order by 1",
    "what is found most often": "select what, count(*) from findings group by what order by 2 desc limit 5",
}


def made_up(number: int) -> LakeEntry:
    rng = np.random.default_rng(number)
    run = blake2b(f"run {number}".encode(), digest_size=16).hexdigest()
    tables = {}
    for name, schema in TABLES.items():
        count = ROWS[name]
        columns: list[pa.Array] = [pa.array([run] * count)]
        for field in list(schema)[1:]:
            if pa.types.is_string(field.type):
                kinds = [f"{field.name} {i % (7 if name != 'metrics' else count)}" for i in range(count)]
                columns.append(pa.array(kinds if name != "runs" else [f"{field.name} {number % 7}"], pa.string()))
            elif pa.types.is_integer(field.type):
                columns.append(pa.array(rng.integers(0, 10**9, count), pa.int64()))
            else:
                columns.append(pa.array(rng.random(count)))
        tables[name] = pa.table(columns, schema=schema)
    return LakeEntry(run, tables)


def write(folder: str, first: int, last: int, step: int) -> int:
    lake = Lake(Path(folder))
    return sum(lake.add(made_up(number)) for number in range(first, last, step))


def ask(lake: Lake, when: str) -> None:
    files = list(lake.folder.rglob("*.parquet"))
    print(f"{when}: {len(files):,} files, {sum(f.stat().st_size for f in files) / 1e6:.1f} MB")
    for what, sql in QUERIES.items():
        begun, used = perf_counter(), process_time()
        rows = len(lake.query(sql))
        print(f"{what:28} {perf_counter() - begun:6.2f} s, {process_time() - used:5.2f} s CPU, {rows} rows")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--writers", type=int, default=2, help="processes that add at a time")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        begun = perf_counter()
        with ProcessPoolExecutor(asked.writers) as pool:
            # every run is offered twice, by neighbouring writers: each is to be there once
            offered = [(folder, w // 2, asked.runs, max(asked.writers // 2, 1)) for w in range(asked.writers)]
            new = sum(pool.map(write, *zip(*offered, strict=True)))
        took = perf_counter() - begun
        lake = Lake(Path(folder))
        print(f"{asked.runs:,} runs, {asked.writers} writers: {took:.1f} s, {1e3 * took / asked.runs:.1f} ms a run;"
              f" {len(lake):,} are there ({new:,} said that theirs was new)")  # fmt: skip
        ask(lake, "as added")
        begun = perf_counter()
        done = lake.compact()
        took = perf_counter() - begun
        print(f"compact: {took:.1f} s, {done.files_before:,} files before, {done.files_after:,} after")
        ask(lake, "compacted")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
