"""SQL over the tables of a run: the query of `etude query`, in a process of its own with limits."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from etude.base.errors import UsageError
from etude.base.files import writing
from etude.capture.opening import is_columns
from etude.store import columns
from etude.store import sql as store_sql
from etude.tell.studio import folders
from etude.tell.studio.folders import StudioFolder
from etude.tell.studio.session import StudioRun

SECONDS: Final = 20.0
MEMORY_BYTES: Final = 4 << 30
"""What a query may write to. Its address space is larger, the more so the more cores reserve stacks and heaps."""
ROWS: Final = 2_000
"""Rows that are shown of a result."""


def query_folder(one: StudioRun | StudioFolder) -> Path:
    """The folder of Parquet files that queries read: the input, or a copy of the run beside its index."""
    if isinstance(one, StudioFolder):
        return one.path
    source = one.source
    if is_columns(source.path) and not source.system and source.timing is None and source.times is None:
        return Path(source.path)
    place = one.index.folder.with_name(f"{one.index.folder.name}.job")
    if not is_columns(place):
        run = one.run()
        with writing(place, own=True) as folder:
            folder.mkdir()
            columns.write_job(run.job.replace(timing=run.timing), folder)
    return place


def table_columns(one: StudioRun | StudioFolder) -> dict[str, Any]:
    """Tables and their columns, for completion, and queries to begin with."""
    if isinstance(one, StudioFolder):
        return {"tables": folders.columns(one.tables), "examples": folders.examples(one)}

    def made() -> dict[str, list[str]]:
        place = query_folder(one)
        return {
            table: store_sql.query(place, f'DESCRIBE "{table}"')["column_name"].to_pylist()
            for table in store_sql.TABLES
        }

    return {"tables": one.once("tables", made), "examples": EXAMPLES}


EXAMPLES: Final = (
    "select name, count(*) as calls, sum(end_ns - start_ns) / 1e6 as ms from nodes\n"
    "where end_ns > start_ns group by 1 order by 3 desc limit 20",
    "select rank, sum(end_ns - start_ns) / 1e6 as compute_ms from nodes\n"
    "where lane_kind = 'STREAM' and collective is null group by 1 order by 1",
    "select collective, group_name, count(*) as calls, sum(in_bytes) / 1e6 as MB from nodes\n"
    "where collective is not null group by 1, 2 order by 4 desc",
)


def query(one: StudioRun | StudioFolder, sql: str) -> dict[str, Any]:
    """The rows of a query, whether there are more, and the command that gives them."""
    place = one.once("query folder", lambda: query_folder(one))
    limits = ["--seconds", f"{SECONDS:g}", "--top", str(ROWS)]
    # a statement may begin with a comment, which is no option
    command = [sys.executable, "-m", "etude", "query", "--json", *limits, "--", str(place), sql]
    found = _child(command)
    rows = msgspec.json.decode(found) if found.strip() else []
    names = list(rows[0]) if rows else []
    return {
        "columns": names,
        "rows": [[row.get(name) for name in names] for row in rows],
        "more": len(rows) >= ROWS,
        "command": shlex.join(["etude", "query", *(["--"] if sql.startswith("-") else []), str(place), sql]),
        "python": one.python if isinstance(one, StudioFolder) else f"etude.query({str(place)!r}, {sql!r})",
    }


def _child(command: list[str]) -> bytes:
    """What a command prints; it may write nothing, runs no code of files, and ends after a while."""
    allowed = {**os.environ, "ETUDE_LIMITED": os.devnull}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=allowed
    )
    try:
        _limit(process.pid)
        said, wrong = process.communicate(timeout=SECONDS + 20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise UsageError(f"takes longer than {SECONDS:g} s", where="SQL", hint="select fewer rows") from None
    if process.returncode:
        text = wrong.decode("utf-8", "replace").strip() or "the query ended: it needs more memory than it may have"
        problem, _, hint = text.partition("\nhint: ")
        raise UsageError(problem.partition("error: ")[2] or problem, hint=hint)
    return said


def _limit(pid: int) -> None:
    """Bounds the memory of a process, where the system can."""
    import resource

    if hasattr(resource, "prlimit"):
        resource.prlimit(pid, resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
