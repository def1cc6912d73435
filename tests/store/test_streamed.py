"""What is said of Chakra files that are read rank by rank is what is said of the whole job."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import chakra_pb as pb
import etude
import strategies
from etude.base.errors import EtudeError
from etude.capture import opening
from etude.model.check.whole import check
from etude.model.fold import expand
from etude.model.job import Job
from etude.model.summary import summary
from etude.store import chakra, columns, columns_thin
from jobs import jobs
from store_jobs import real_jobs, with_timing, with_values


def same_of(folder: Path) -> None:
    whole = etude.open(folder)
    assert opening.check(folder) == check(whole)
    assert opening.check(folder, complete=True, workers=3) == check(whole, complete=True)
    assert opening.summary(folder) == summary(whole) | {"written_by": chakra.written_by(whole)}


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(jobs(), st.booleans(), st.booleans())
def test_jobs_with_and_without_faults(job: Job, timed: bool, valued: bool):
    job = with_values(job) if valued else job
    job = with_timing(job) if timed else job
    with tempfile.TemporaryDirectory() as folder:
        try:
            chakra.write_job(job, Path(folder), name="job")
        except EtudeError:
            return  # its groups are nothing a group file can say
        same_of(Path(folder))


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(jobs(), st.booleans(), st.booleans())
def test_jobs_in_parquet(job: Job, timed: bool, valued: bool):
    job = with_values(job) if valued else job
    job = expand(with_timing(job) if timed else job)
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(columns_thin, "HELD_NODES", 2):
        columns.write_job(job, folder)
        same_of(Path(folder))


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(strategies.et_files(), min_size=1, max_size=4))
def test_files_of_any_content(files: Sequence[bytes]):
    with tempfile.TemporaryDirectory() as folder:
        for rank, data in enumerate(files):
            (Path(folder) / f"any.{rank * 2}.et").write_bytes(data)
        try:
            chakra.read_job(Path(folder))
        except EtudeError as problem:
            with pytest.raises(type(problem)):
                opening.check(folder)
            return
        same_of(Path(folder))


def test_real_jobs(shared: Path, tmp_path: Path):
    seen = 0
    for number, (_, job) in enumerate(real_jobs(shared, "oracle", "stg")):
        if job.nodes > 20_000 or seen == 12:
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        chakra.write_job(job, folder, name="job")
        same_of(folder)
        seen += 1
    assert seen


# -- times that cannot be ----------------------------------------------------------------------------------------------


def with_times(folder: Path, *micros: tuple[int, int]) -> Path:
    nodes = [
        pb.Node(id=i, name=f"op{i}", type=4, start_time_micros=start, duration_micros=duration)
        for i, (start, duration) in enumerate(micros)
    ]
    path = folder / "times.0.et"
    path.write_bytes(pb.write_messages(pb.GlobalMetadata(version="1.0.0"), nodes))
    return path


DAY = 86_400 * 10**6


@pytest.mark.parametrize(
    ("micros", "words"),
    [
        ([(10, 5), (20, 31 * DAY), (30, 1)], "node 1 lasts longer than 30 days"),
        ([(10, 5), (20, 5), (40 * DAY, 1)], "node 2 starts more than 30 days before or after most others"),
        ([(50 * DAY, 5), (50 * DAY + 9, 5), (3, 1)], "node 2 starts more than 30 days before or after most others"),
        ([(10, 5), (20, 2**64 - 1)], "1 time(s) too large for 64 bits of ns: kept, not used; the first at node 1"),
        ([(10, 5), (2**62, 7)], "1 time(s) too large for 64 bits of ns: kept, not used; the first at node 1"),
    ],
)
def test_absurd_times_are_findings(tmp_path: Path, micros: list[tuple[int, int]], words: str):
    found = opening.check(with_times(tmp_path, *micros))
    assert [f.what for f in found if words in f.what], found


def test_long_recordings_are_fine(tmp_path: Path):
    hours = [(n * 3600 * 10**6 + 1, 3600 * 10**6) for n in range(24 * 20)]
    assert opening.check(with_times(tmp_path, *hours)) == []
