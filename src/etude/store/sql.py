"""SQL over a job, through DuckDB: over the Parquet files of a folder without loading them, or over a job in memory.

    query("run.job", "SELECT collective, sum(in_bytes) FROM nodes WHERE rank = 0 GROUP BY ALL")

The tables are listed in TABLES. They are per rank, however few distinct traces the job has. Queries read: what would
write, attach, load or open any other file is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any, Final, TypeAlias

import pyarrow as pa

from etude.base.errors import UsageError
from etude.model.job import VALUE_COLUMNS, Job
from etude.model.schema import NODE, TWICE_TIMED, LaneKind
from etude.store import columns
from etude.store import columns_schema as schema
from etude.store.columns_files import File, first_line

Columns: TypeAlias = str | Path
"""The folder of a job in Parquet."""
TABLES: Final = ("nodes", "deps", "attrs", "groups", "members", "ranks", "traces")
_HINT: Final = f"tables: {', '.join(TABLES)}; `DESCRIBE nodes` lists the columns of one"

_LOCKS: Final = (
    "SET enable_progress_bar = false",
    "SET python_enable_replacements = false",  # a name in a query is never a variable of the caller
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET temp_directory = ''",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
_SQL_TYPE: Final = {"uint8": "UTINYINT", "int8": "TINYINT", "int32": "INTEGER", "int64": "BIGINT", "uint64": "UBIGINT"}
_OWN_WAY: Final = {"source_id", "lane", "cpu", "group", "src", "dst", "tag", "io", "layout"}
"""Node columns that the view changes."""
_MOD: Final = "18446744073709551616"


def query(source: Job | Columns, sql: str, *, seconds: float | None = None) -> pa.Table:
    """The result of one SELECT (or DESCRIBE, SHOW, SUMMARIZE, EXPLAIN). Sums are int64 where they fit. A query that
    takes longer than `seconds` is ended.

    etude.query(job, "select kind, count(*) from nodes group by kind")
    """
    import duckdb

    with duckdb.connect(":memory:") as connection:
        _prepare(connection, source)
        return select(connection, sql, seconds=seconds)


@contextmanager
def _ended_after(connection: Any, seconds: float | None) -> Iterator[None]:
    if seconds is None:
        yield
        return
    fired: list[float] = []

    def end() -> None:
        fired.append(seconds)
        connection.interrupt()

    timer = Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except UsageError:
        if fired:  # DuckDB reports an interrupt as an error
            raise UsageError(f"takes longer than {seconds:g} s", where="SQL", hint="select fewer rows") from None
        raise
    finally:
        timer.cancel()


def query_tables(tables: dict[str, pa.Table], sql: str, *, seconds: float | None = None) -> pa.Table:
    """The same over tables in memory, by their names."""
    import duckdb

    with duckdb.connect(":memory:") as connection:
        hint = f"tables: {', '.join(tables)}; `DESCRIBE {next(iter(tables))}` lists the columns of one"
        for name, table in tables.items():
            try:
                connection.register(name, table)
            except duckdb.Error as problem:
                raise UsageError(f"table `{name}` cannot be queried: {first_line(problem)}", hint=hint) from None
        return select(connection, sql, hint=hint, seconds=seconds)


def select(connection: Any, sql: str, *, hint: str = _HINT, seconds: float | None = None) -> Any:
    """The result of one SELECT over the tables of a connection; afterwards it cannot open anything else."""
    with _ended_after(connection, seconds):
        return _selected(connection, sql, hint)


def _selected(connection: Any, sql: str, hint: str) -> Any:
    import duckdb

    try:
        for setting in _LOCKS:
            connection.execute(setting)
        return _narrowed(_run(connection, sql, hint))
    except duckdb.Error as problem:
        raise UsageError(str(problem).strip(), where="SQL", hint=hint) from None


def _run(connection: Any, sql: str, hint: str) -> Any:
    import duckdb

    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise UsageError(f"{len(statements)} statements, expected one", where="SQL", hint=hint)
    kind = statements[0].type
    if kind == duckdb.StatementType.EXPLAIN:
        words = sql.split(None, 2)
        inner = sql.split(None, 1)[1] if len(words) < 3 or words[1].upper() != "ANALYZE" else words[2]
        found = connection.extract_statements(inner)
        if len(found) == 1 and found[0].type == duckdb.StatementType.SELECT:
            rows = connection.execute(sql).fetchall()
            return pa.table({"plan": [str(row[-1]) for row in rows]})
    if kind != duckdb.StatementType.SELECT:
        raise UsageError(f"{kind.name} is refused: queries only read", where="SQL", hint="begin with SELECT")
    relation = connection.sql(statements[0].query)
    if relation is None:
        raise UsageError("returns no rows", where="SQL", hint=hint)
    return relation.to_arrow_table()


def _narrowed(found: Any) -> Any:
    """HUGEINT, the type of integer sums in DuckDB, as int64 if all values fit."""
    for i, field in enumerate(found.schema):
        if field.type == pa.decimal128(38, 0):
            try:
                found = found.set_column(i, field.name, found.column(i).cast(pa.int64()))
            except pa.ArrowInvalid:
                continue
    return found


# -- the tables --------------------------------------------------------------------------------------------------------


def _prepare(connection: Any, source: Job | str | Path) -> None:
    """Registers files or tables under the name file_*, and the views over them; then nothing else can be opened."""
    import duckdb

    found = _registered(connection, source) if isinstance(source, Job) else _opened(connection, Path(source))
    try:
        connection.execute(_bound(found))
        has_base = connection.execute("SELECT coalesce(max(id_base), 0) > 0 FROM bound").fetchone()[0]
        for view in _views(found, bool(has_base)):
            connection.execute(view)
    except duckdb.Error as problem:
        where = "" if isinstance(source, Job) else str(source)
        raise UsageError(f"cannot be queried: {first_line(problem)}", where=where) from None


def _registered(connection: Any, job: Job) -> dict[str, set[str]]:
    found = {}
    for name, table in columns.tables(job).items():
        connection.register(f"file_{name}", table)
        found[name] = set(table.column_names)
    return found


def _opened(connection: Any, folder: Path) -> dict[str, set[str]]:
    manifest = columns.read_manifest(folder)
    found = {}
    paths = []
    for name in schema.FILES:
        path = folder.resolve() / f"{name}.parquet"
        if name in schema.OPTIONAL_FILES and not path.exists():
            continue
        if name == "timing" and manifest.timing is None:
            continue
        file = File(folder, name)
        found[name] = file.columns
        if any(c in str(path) for c in "*?[]{}"):  # DuckDB would interpret the name as a pattern
            from pyarrow import dataset

            connection.register(f"file_{name}", dataset.dataset(str(path), format="parquet"))
        else:
            paths.append(quoted(str(path)))
            connection.execute(f"CREATE VIEW file_{name} AS SELECT * FROM read_parquet({paths[-1]})")
    connection.execute(f"SET allowed_paths = [{', '.join(paths)}]")
    return found


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _bound(found: dict[str, set[str]]) -> str:
    """Ranks with their bindings, in memory: one row per rank."""
    lane_kinds = ", ".join(quoted(k.name) for k in LaneKind)
    return f"""
        CREATE TEMP TABLE bound AS
        WITH named AS (SELECT list(name ORDER BY "group") AS names FROM file_groups)
        SELECT r.rank, r.trace, r.id_base, r.tag_base, r.groups, r.peers, r.own, r.block, r.clock_offset_ns,
               [named.names[g + 1] FOR g IN r.groups] AS group_names,
               t.nodes, t.missing, t.lane_id, [[{lane_kinds}][k + 1] FOR k IN t.lane_kind] AS lane_kind
        FROM file_ranks r JOIN file_traces t ON t.trace = r.trace CROSS JOIN named"""


def _views(found: dict[str, set[str]], has_base: bool) -> list[str]:
    return [
        _nodes(found, has_base),
        _deps(has_base),
        _attrs(found["attrs"]),
        """CREATE VIEW groups AS
           SELECT "group" AS group_id, name, members AS ranks, len(members) AS size FROM file_groups""",
        """CREATE VIEW members AS
           SELECT group_id, name, unnest(range(size)) AS group_rank, unnest(ranks) AS rank FROM groups""",
        """CREATE VIEW ranks AS
           SELECT rank, trace, nodes, id_base, tag_base, group_names AS "groups", peers, clock_offset_ns FROM bound""",
        """CREATE VIEW traces AS
           SELECT t.trace, t.nodes, t.data_deps, t.ctrl_deps, t.attrs, len(t.missing) AS missing_ids,
                  coalesce(r.ranks, 0) AS ranks
           FROM file_traces t
           LEFT JOIN (SELECT trace, count(*) AS ranks FROM bound GROUP BY trace) r ON r.trace = t.trace""",
    ]


def _id(value: str, has_base: bool) -> str:
    """An id as in the file of the rank; ids wrap at 2**64."""
    return f"(({value}::HUGEINT + r.id_base::HUGEINT) % {_MOD})::UBIGINT" if has_base else value


def _nodes(found: dict[str, set[str]], has_base: bool) -> str:
    present = found["nodes"]

    def held(name: str, sql: str, kind: str) -> str:
        return f"{sql} AS {name}" if name in present else f"NULL::{kind} AS {name}"

    parts = ["r.rank", "n.node", "n.trace", f"{_id('n.source_id', has_base)} AS source_id"]
    for c in NODE:
        if c.name in _OWN_WAY or (c.name in TWICE_TIMED and c.name not in present):
            continue
        kind = "VARCHAR" if c.is_text or c.name in schema.WORDS else _SQL_TYPE[c.dtype]
        plain = f"n.{c.name}" if c.name in present else f"NULL::{kind}"
        if c.name in VALUE_COLUMNS and c.name in found.get("values", ()):
            plain = f"CASE WHEN list_contains(r.own, '{c.name}') THEN v.{c.name} ELSE {plain} END"
        parts.append(f"{plain} AS {c.name}")
    parts += [
        held("cpu", "n.cpu = 1", "BOOLEAN"),
        held("lane", "n.lane", "INTEGER"),
        "r.lane_kind[n.lane + 1] AS lane_kind" if "lane" in present else "NULL::VARCHAR AS lane_kind",
        "r.lane_id[n.lane + 1] AS lane_id" if "lane" in present else "NULL::BIGINT AS lane_id",
        'r.groups[n."group" + 1] AS group_id' if "group" in present else "NULL::INTEGER AS group_id",
        'r.group_names[n."group" + 1] AS group_name' if "group" in present else "NULL::VARCHAR AS group_name",
        held("src", "r.peers[n.src + 1]", "BIGINT"),
        held("dst", "r.peers[n.dst + 1]", "BIGINT"),
        held("tag", "CASE WHEN n.tag >= 0 THEN n.tag + r.tag_base ELSE n.tag END", "BIGINT"),
    ]
    timed = "timing" in found
    parts += [f"t.{c} AS {c}" if timed else f"NULL::BIGINT AS {c}" for c in ("start_ns", "end_ns")]
    joins = "FROM bound r JOIN file_nodes n ON n.trace = r.trace"
    if "values" in found:
        joins += " LEFT JOIN file_values v ON v.rank = r.rank AND v.node = n.node"
    if timed:
        joins += " LEFT JOIN file_timing t ON t.block = r.block AND t.node = n.node"
    return f"CREATE VIEW nodes AS SELECT {', '.join(parts)} {joins}"


def _deps(has_base: bool) -> str:
    # `on` below 0 is ~k into the trace's missing ids; lists count from 1 in SQL, so that is element -on
    missing = _id('r.missing[-d."on"]', has_base)
    return f"""
        CREATE VIEW deps AS
        SELECT r.rank, d.node, d.position, d.kind, CASE WHEN d."on" >= 0 THEN d."on" END AS on_node, d.why,
               CASE WHEN d."on" < 0 THEN {missing} END AS missing_id
        FROM bound r JOIN file_deps d ON d.trace = r.trace"""


def _attrs(present: set[str]) -> str:
    bits = "a.bits" if "bits" in present else "NULL::BIGINT"
    double = 'a."double"' if "double" in present else "NULL::DOUBLE"
    cases = [
        f"WHEN a.kind = 'bool' THEN ({bits} <> 0)::VARCHAR",
        f"WHEN a.kind = 'float' THEN ({double})::FLOAT::VARCHAR",
        f"WHEN a.kind = 'double' THEN ({double})::VARCHAR",
        f"WHEN a.kind IN ('uint64', 'fixed64') AND {bits} < 0 THEN ({bits}::HUGEINT + {_MOD})::VARCHAR",
    ]
    if "text" in present:
        cases.append("WHEN a.kind = 'string' THEN a.text")
    if "payload" in present:
        cases.append("WHEN a.kind = 'bytes' THEN to_base64(a.payload)")
    if "list" in present:
        cases.append('WHEN a."list" IS NOT NULL THEN a."list"')
    number = f"""CASE WHEN a.kind IN ('double', 'float') OR (a.kind IN ('uint64', 'fixed64') AND {bits} < 0) THEN NULL
                 ELSE {bits} END"""
    return f"""
        CREATE VIEW attrs AS
        SELECT r.rank, a.node, a.position, a.name, a.kind,
               CASE {" ".join(cases)} ELSE {bits}::VARCHAR END AS value,
               {number} AS int_value, {double} AS double_value
        FROM bound r JOIN file_attrs a ON a.trace = r.trace"""
