"""Counters of CUPTI in a profiler's trace: whose they are, and what becomes of them."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.analyse.counters import counters
from etude.base.errors import UsageError
from etude.surface.cli import main
from recorded import device_json, event, kernel, launch, op, put


def counted(name: str, ts: float, **values: float) -> dict[str, Any]:
    return event("cuda_profiler_range", name, ts, 100, 0, **values)


def two_launches() -> list[dict[str, Any]]:
    """mm{addmm{launch}} and relu{launch}, both in an annotation."""
    return [
        op("forward", 0, 100, 1, cat="user_annotation"), op("aten::linear", 10, 30, 2), op("aten::addmm", 15, 20, 3),
        launch(20, 7), op("aten::relu", 50, 20, 4), launch(60, 8),
    ]  # fmt: skip


def opened(tmp_path: Path, *events: dict[str, Any]) -> Any:
    put(tmp_path / "w.json.gz", device_json(*events))
    return etude.open(tmp_path / "w.json.gz")


def test_ranges_belong_to_launches_in_their_order(tmp_path: Path) -> None:
    """Their times are no times: both end before the second launch begins."""
    job = opened(tmp_path, *two_launches(), counted("gemm", 1, insts=100, bytes=8), counted("__missing__", 2, insts=3))
    assert counters(job).to_pylist() == [
        {"kernel": "gemm", "count": 1, "insts": 100, "bytes": 8},
        {"kernel": "__missing__", "count": 1, "insts": 3, "bytes": None},
    ]
    assert counters(job, ["operator"]).to_pylist() == [
        {"operator": "aten::linear", "count": 1, "insts": 100, "bytes": 8},
        {"operator": "aten::relu", "count": 1, "insts": 3, "bytes": None},
    ]
    trace = job.traces[0]
    launches = [i for i in range(len(trace)) if trace.text("name", i) == "cudaLaunchKernel"]
    found = [{attr.name: value for attr, value in trace.attributes(i)} for i in launches]
    assert [one["counter:insts"] for one in found] == [100, 3] and found[0]["counted_kernel"] == "gemm"
    assert trace.attributes(launches[0])[0][0].name  # nothing else was lost


def test_ranges_belong_to_kernels_where_these_were_recorded(tmp_path: Path) -> None:
    kernels = [kernel("gemm", 70, 5, 7, 3), kernel("relu", 80, 5, 8, 4)]
    job = opened(tmp_path, *two_launches(), *kernels, counted("gemm", 1, rate=0.5), counted("relu", 2, rate=1))
    trace = job.traces[0]
    rows = [i for i in range(len(trace)) if any(a.name == "counter:rate" for a, _ in trace.attributes(i))]
    assert [trace.text("name", i) for i in rows] == ["gemm", "relu"]
    assert counters(job).to_pylist()[0] == {"kernel": "gemm", "count": 1, "rate": 0.5}


def test_a_range_over_all_lies_with_the_first_node(tmp_path: Path) -> None:
    job = opened(tmp_path, *two_launches(), counted("inference", 1, insts=100))
    assert counters(job).to_pylist() == [{"kernel": "inference", "count": 1, "insts": 100}]


def test_what_cannot_be_told_is_left_out_and_said(tmp_path: Path, capsys) -> None:
    job = opened(tmp_path, *two_launches(), *(counted("k", i, insts=1) for i in range(3)))
    assert "3 ranges of counters, 0 kernels and 2 launches" in job.notes[0].what
    with pytest.raises(UsageError, match="no hardware counters"):
        counters(job)
    assert main(["kernels", str(tmp_path / "w.json.gz"), "--counters"]) == 2
    with pytest.raises(UsageError, match="cannot be summed by `colour`"):
        counters(job, ["colour"])


def test_counters_are_kept_in_files_and_asked_for(tmp_path: Path, capsys) -> None:
    job = opened(tmp_path, *two_launches(), counted("gemm", 1, insts=100), counted("relu", 2, insts=2.5))
    for to in ("et", "parquet"):
        assert main(["convert", str(tmp_path / "w.json.gz"), str(tmp_path / to), "--to", to]) == 0
        assert counters(etude.open(tmp_path / to)).equals(counters(job))
    capsys.readouterr()
    sql = "select value from attrs where name = 'counter:insts' order by node"
    assert main(["query", str(tmp_path / "et"), sql, "--csv"]) == 0
    assert [float(line) for line in capsys.readouterr().out.split()[1:]] == [100, 2.5]
    assert main(["kernels", str(tmp_path / "et"), "--counters", "--by", "rank,phase", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"rank": 0, "phase": None, "count": 2, "insts": 102.5}]


def test_a_real_file_by_operator_as_hta_sums_it(shared: Path) -> None:
    job = etude.open(shared / "oracle/hta/inputs/cupti.json.gz")
    ours = {row["operator"]: row for row in counters(job, ["operator"]).to_pylist()}
    assert sum(row["count"] for row in ours.values()) == 77
    with (shared / "oracle/hta/cupti_counters_by_top_op.csv").open() as file:
        theirs = {row.pop("top_level_op"): row for row in csv.DictReader(file)}
    assert set(ours) == set(theirs)
    for name, row in theirs.items():
        assert {key: ours[name][key] for key in row} == {key: float(value) for key, value in row.items()}, name
