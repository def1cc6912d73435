"""SQL over a job gives what the job says, from Parquet and from memory alike, and nothing else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chakra_pb as pb
import store_jobs as jobs
from etude.base.errors import FormatError, UsageError
from etude.model.fold import fold
from etude.model.job import Job
from etude.store import chakra, columns, sql

EVERYTHING = [f"SELECT * FROM {table} ORDER BY ALL" for table in sql.TABLES]


@pytest.fixture(params=["memory", "Parquet", "folded"])
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> Job | Path:
    job = jobs.tiny_job()
    if request.param == "folded":
        job = fold(job)
    if request.param == "memory":
        return job
    columns.write_job(job, tmp_path)
    return tmp_path


def rows(source: Job | Path, text: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in sql.query(source, text).to_pylist()]


def test_nodes_are_per_rank_and_readable(tiny: Job | Path) -> None:
    found = rows(
        tiny, "SELECT rank, node, source_id, kind, collective, name, duration_ns, flops FROM nodes ORDER BY ALL"
    )
    assert found == [
        (0, 0, 0, "COMP_NODE", None, "gemm", 1500, 10),
        (0, 1, 1, "COMM_SEND_NODE", None, "send", None, None),
        (0, 2, 2, "COMM_COLL_NODE", "ALL_REDUCE", "grads", None, None),
        (1, 0, 0, "COMP_NODE", None, "gemm", 1500, 11),
        (1, 1, 1, "COMM_RECV_NODE", None, "recv", None, None),
        (1, 2, 2, "COMM_COLL_NODE", "ALL_REDUCE", "grads", None, None),
    ]


def test_bindings_are_resolved(tiny: Job | Path) -> None:
    found = rows(
        tiny, "SELECT node, group_name, src, dst, tag, lane_kind, lane_id FROM nodes WHERE rank = 1 ORDER BY 1"
    )
    assert found == [
        (0, None, None, None, None, "STREAM", 7),
        (1, None, 0, 1, 5, None, None),
        (2, "dp", None, None, None, "NETWORK", 0),
    ]


def test_dependencies_keep_their_order(tiny: Job | Path) -> None:
    found = rows(tiny, "SELECT node, kind, position, on_node, why, missing_id FROM deps WHERE rank = 0 ORDER BY ALL")
    assert found == [
        (1, "data", 0, 0, "unknown", None),
        (2, "ctrl", 0, 1, "unknown", None),
        (2, "ctrl", 1, 0, "unknown", None),
        (2, "data", 0, 0, "unknown", None),
    ]


def test_attributes_have_text_and_numbers(tiny: Job | Path) -> None:
    found = rows(
        tiny, "SELECT node, name, kind, value, int_value, double_value FROM attrs WHERE rank = 1 ORDER BY position"
    )
    assert found == [
        (0, "ratio", "double", "0.5", None, 0.5),
        (0, "big", "uint64", "18446744073709551615", None, None),
        (0, "dims", "int32_list", "[1,-2]", None, None),
    ]


def test_small_tables(tiny: Job | Path) -> None:
    assert rows(tiny, "SELECT * FROM groups") == [(0, "dp", [1, 0], 2)]
    assert rows(tiny, "SELECT * FROM members ORDER BY group_rank") == [(0, "dp", 0, 1), (0, "dp", 1, 0)]
    assert rows(tiny, "SELECT rank, nodes, groups, peers FROM ranks ORDER BY 1") == [
        (0, 3, ["dp"], [0, 1]),
        (1, 3, ["dp"], [0, 1]),
    ]
    assert rows(tiny, "SELECT sum(ranks), max(missing_ids) FROM traces") == [(2, 0)]


def test_sums_are_plain_integers(tiny: Job | Path) -> None:
    assert str(sql.query(tiny, "SELECT sum(duration_ns) AS total FROM nodes").schema.field("total").type) == "int64"


def test_values_and_times_of_a_rank(tmp_path: Path) -> None:
    job = jobs.with_timing(jobs.with_values(jobs.tiny_job()))
    columns.write_job(job, tmp_path)
    for source in (job, tmp_path):
        found = rows(source, "SELECT rank, node, duration_ns, in_bytes, start_ns, end_ns FROM nodes ORDER BY ALL")
        assert found == [
            (0, 0, 0, None, 0, 1234),
            (0, 1, 1000, 7, 1000, 2234),
            (0, 2, 2000, None, 2000, 3234),
            (1, 0, 1500, None, 0, 1234),
            (1, 1, None, 64, 1000, 2234),
            (1, 2, None, 4096, 2000, 3234),
        ]


def test_ids_and_tags_have_their_base() -> None:
    job = jobs.tiny_job()
    moved = job.replace(id_base=job.id_base + np.uint64(2**64 - 1), tag_base=job.tag_base + 100)
    assert rows(moved, "SELECT source_id, tag FROM nodes WHERE rank = 0 ORDER BY node") == [
        (2**64 - 1, None),
        (0, 105),
        (1, None),
    ]


@pytest.mark.parametrize("name", ["h200_nccl/fsdp/chakra_trace", "host_only", "official_tests/chakra"])
def test_real_jobs_agree_with_protobuf(shared: Path, tmp_path: Path, name: str) -> None:
    path = shared / "oracle/chakra_official" / name
    path = next(iter(sorted(path.glob("*.et*")))) if path.is_dir() else path
    job = chakra.read_job(path)
    columns.write_job(job, tmp_path)
    folded = fold(job)
    for text in EVERYTHING:
        from_files = sql.query(tmp_path, text)
        assert from_files.equals(sql.query(job, text)), text
        if "FROM nodes" not in text and "ranks" not in text and "traces" not in text:
            assert from_files.equals(sql.query(folded, text)), text
    rank = int(job.ranks[0])
    _, nodes = pb.read_messages(jobs.encoded(job)[0])
    kinds = Counter(
        pb.SCHEMA.Node.DESCRIPTOR.fields_by_name["type"].enum_type.values_by_number[n.type].name for n in nodes
    )
    assert dict(rows(tmp_path, f"SELECT kind, count(*) FROM nodes WHERE rank = {rank} GROUP BY kind")) == kinds
    ids = rows(tmp_path, f"SELECT source_id FROM nodes WHERE rank = {rank} ORDER BY node")
    assert [i for (i,) in ids] == [n.id for n in nodes]
    deps = rows(
        tmp_path,
        f"""SELECT d.node, coalesce(n.source_id, d.missing_id) FROM deps d
           LEFT JOIN nodes n ON n.rank = d.rank AND n.node = d.on_node
           WHERE d.rank = {rank} AND d.kind = 'data' ORDER BY d.node, d.position""",
    )
    assert deps == [(i, d) for i, n in enumerate(nodes) for d in n.data_deps]


REFUSED = [
    "COPY nodes TO 'x.csv'", "COPY nodes TO 'nodes.parquet'", "CREATE TABLE t (a INT)", "DROP VIEW nodes",
    "INSERT INTO bound SELECT * FROM bound", "ATTACH 'x.db'", "INSTALL httpfs", "LOAD httpfs", "SET threads = 1",
    "PRAGMA enable_profiling", "EXPLAIN ANALYZE COPY nodes TO 'x.csv'", "SELECT 1; SELECT 2", "", "EXPLAIN",
    "CHECKPOINT",
    "SELECT * FROM read_text('{here}')", "SELECT * FROM read_csv('{here}')", "SELECT * FROM '{here}'",
    "SELECT * FROM glob('/*')", "SELECT * FROM job", "SELECT * FROM nods", "SELECT nothing FROM nodes", "SELEKT",
    "EXPORT DATABASE 'x'", "VACUUM", "CALL pragma_version()",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_a_query_over_the_tables_is_refused(tiny: Job | Path, text: str) -> None:
    before = sorted(p.name for p in tiny.iterdir()) if isinstance(tiny, Path) else []
    with pytest.raises(UsageError) as problem:
        sql.query(tiny, text.replace("{here}", __file__))
    assert problem.value.hint
    if isinstance(tiny, Path):
        assert sorted(p.name for p in tiny.iterdir()) == before


def test_an_unknown_table_names_those_that_are_there(tiny: Job | Path) -> None:
    with pytest.raises(UsageError, match=r"(?s)nods does not exist.*hint: tables: nodes, deps, attrs"):
        sql.query(tiny, "SELECT * FROM nods")


def test_describe_and_explain(tiny: Job | Path) -> None:
    assert "duration_ns" in [row[0] for row in rows(tiny, "DESCRIBE nodes")]
    assert rows(tiny, "EXPLAIN SELECT * FROM nodes")


def test_odd_folder_names(tmp_path: Path) -> None:
    folder = tmp_path / "it's [a] *job*"
    folder.mkdir()
    columns.write_job(jobs.tiny_job(), folder)
    assert rows(folder, "SELECT count(*) FROM nodes") == [(6,)]


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="manifest"):
        sql.query(tmp_path, "SELECT 1")
    columns.write_job(jobs.tiny_job(), tmp_path)
    (tmp_path / "deps.parquet").write_bytes(b"PAR1")
    with pytest.raises(FormatError, match="deps"):
        sql.query(tmp_path, "SELECT 1")
