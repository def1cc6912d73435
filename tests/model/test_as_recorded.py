"""Both timings of a job: worked by hand, through stores, edits and copies."""

from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.make.transform import AnonymiseOptions, anonymise
from etude.make.transform.edits import apply_edits
from etude.model.as_recorded import as_recorded, has_both_times
from etude.model.build import TraceBuilder
from etude.model.cutting import kept
from etude.model.diff import diff
from etude.model.fold import expand, fold
from etude.model.job import DEFAULT_METADATA, Job, Part, assemble
from etude.model.schema import TWICE_TIMED, Kind, TimeSource
from etude.model.summary import summary
from etude.model.timing import measured
from etude.store import chakra, columns, sql, whose_times

TOLD = {"timing": "program", "anchored": "yes", "timing_recorded_step_ns": "400"}


def both() -> Job:
    """Two nodes that took 10 and 20 ns, and 100 and 300 under the profiler, from 5,000 on."""
    b = TraceBuilder()
    b.add(Kind.COMP, "gemm", cpu=1, thread=1, duration_ns=10)
    b.add(Kind.COMP, "gelu", data=[0], cpu=1, thread=1, duration_ns=20)
    trace = b.build().replace(
        time_source=np.array([TimeSource.LIGHT, TimeSource.CORRECTED], np.uint8),
        recorded_start_ns=np.array([5000, 5100]),
        recorded_end_ns=np.array([5100, 5400]),
        recorded_duration_ns=np.array([100, 300]),
    )
    timing = measured([np.array([0, 10])], [np.array([10, 20])])
    said = {"source_format": "pytorch profiler", **TOLD}
    return assemble("two", [Part(0, trace, [], np.zeros(0, np.int64))], timing=timing, provenance=said)


def times(job: Job) -> tuple[list[int], list[int], list[int]]:
    assert job.timing is not None
    start, end = job.timing.block(0)
    return start.tolist(), end.tolist(), job.trace(0).duration_ns.tolist()


def test_the_other_timing_is_that_of_the_same_nodes():
    job = both()
    found = as_recorded(job)
    assert times(job) == ([0, 10], [10, 30], [10, 20])
    assert times(found) == ([5000, 5100], [5100, 5400], [100, 300])
    assert dict(found.provenance) == {"source_format": "pytorch profiler"} and not has_both_times(found)
    assert as_recorded(found) is found  # it has no others
    assert summary(job)["nodes_by_time_source"] == {"light": 1, "corrected": 1}
    assert "nodes_by_time_source" not in summary(found)


def test_parquet_keeps_both_and_is_queried(tmp_path: Path):
    columns.write_job(both(), tmp_path)
    again = columns.read_job(tmp_path)
    assert diff(again, both()) is None and times(as_recorded(again)) == times(as_recorded(both()))
    rows = sql.query(tmp_path, "select name, time_source, recorded_duration_ns from nodes order by node").to_pylist()
    assert [tuple(row.values()) for row in rows] == [("gemm", "light", 100), ("gelu", "corrected", 300)]


def test_a_job_of_one_timing_has_no_such_columns(tmp_path: Path):
    columns.write_job(as_recorded(both()), tmp_path)
    names = sql.query(tmp_path, "describe nodes")["column_name"].to_pylist()
    assert not {*TWICE_TIMED} & {*names, *columns.File(tmp_path, "nodes").columns}


def test_chakra_files_say_whose_times_they_have(tmp_path: Path):
    job = both()
    chakra.write_job(job, tmp_path)
    again = chakra.read_job(tmp_path)
    assert again.provenance == {"source_format": "chakra et", **TOLD} and again.metadata == job.metadata
    assert times(again) == times(job) and diff(again, job) is None
    with pytest.raises(UsageError, match="has the times of the program alone"):
        as_recorded(again)
    assert "the times under the profiler" in chakra.left_behind(job)
    plain = bytes(chakra.encode(chakra.for_rank(as_recorded(job), 0)[0]))
    assert b"timing" not in plain and plain[1 : 1 + len(DEFAULT_METADATA)] == DEFAULT_METADATA


@pytest.mark.parametrize(
    "told",
    [{"timing": "mine"}, {"timing": "estimated"}, {"timing": "program", "timing_recorded_step_ns": "soon"}, {}],
)
def test_what_no_release_wrote_stays_an_attribute(told: dict[str, str]):
    fields = whose_times._fields({"timing": "program"} | told) if told.get("timing") != "mine" else b""
    assert whose_times.said([DEFAULT_METADATA + fields]) == ({} if told else {"timing": "program"})
    assert whose_times.with_times(DEFAULT_METADATA, {"timing": "mine"}) == DEFAULT_METADATA


def test_files_that_do_not_agree_say_nothing():
    one, two = (whose_times.with_times(DEFAULT_METADATA, {"timing": "program", "anchored": a}) for a in ("yes", "no"))
    assert (
        whose_times.said([one, one]) == {"timing": "program", "anchored": "yes"} and whose_times.said([one, two]) == {}
    )


def test_a_part_and_a_folded_job_keep_both():
    trace = kept(both().traces[0], np.array([False, True]))
    assert trace.recorded_start_ns.tolist() == [5100] and trace.time_source.tolist() == [TimeSource.CORRECTED]
    assert times(as_recorded(expand(fold(both())))) == times(as_recorded(both()))


def test_an_edit_leaves_one_timing():
    edited = apply_edits(both(), ["speed op=gemm by=2"]).job
    assert edited.trace(0).duration_ns.tolist() == [5, 20] and not has_both_times(edited)
    with pytest.raises(UsageError, match="etude edit JOB --as-recorded"):
        as_recorded(edited)


def test_an_anonymous_copy_counts_both_from_the_first_or_has_one():
    copy = anonymise(both())[0]
    assert times(as_recorded(copy)) == ([0, 100], [100, 400], [100, 300])
    assert copy.provenance == {"tool": "etude anonymise", **TOLD}
    for options in (AnonymiseOptions(keep_times=False), AnonymiseOptions(per_octave=4)):
        assert not has_both_times(anonymise(both(), options)[0])


def test_a_job_without_times_has_none_under_a_profiler():
    with pytest.raises(UsageError, match="has no recorded times"):
        as_recorded(as_recorded(both()).replace(timing=None))
