"""What commands that read a job have in common."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.figures import argument, figure
from etude.base.talk import progress
from etude.steps.asked.times import TimesInput, TimesWanted, tell_times, times_wanted

if TYPE_CHECKING:
    from etude.model.job import Job

JOB_HELP = (
    "A folder of `name.{rank}.et`, one such file, a prefix `folder/name`, JSON, a Parquet folder, or "
    "files that PyTorch wrote: a profiler's trace, a folder of traces, several trace files, dumps of the Flight "
    "Recorder. Also an address, such as `s3://bucket/run/`."
)
GROUPS_HELP = (
    "communicator-group file; by default `name.json` next to the files of the ranks. Of a recording: "
    "the groups of calls for which it names none"
)


@dataclass(frozen=True, kw_only=True)
class JobInput(TimesInput):
    """Parameters of what reads a job."""

    path: str = argument("path", JOB_HELP, like="job/")
    groups: str | None = figure("path", GROUPS_HELP, None)
    workers: int = figure(
        "count", "number of ranks read in parallel; 0: one per core for large recordings", 0, names=("-j",)
    )
    max_bytes: int | None = figure(
        "bytes", "largest size that a file may have, also when unpacked, as `4GiB`", None, key="max_bytes"
    )


@dataclass(frozen=True, slots=True)
class JobSource:
    """Where a job is read from."""

    path: Path
    groups: Path | None = None
    workers: int = 0
    max_bytes: int | None = None
    times: TimesWanted = None

    @classmethod
    def of(cls, asked: JobInput, path: str = "") -> "JobSource":
        """The job that is asked for, or one of several, at `path`."""
        groups = None if asked.groups is None else Path(asked.groups)
        return cls(Path(path or asked.path), groups, asked.workers, asked.max_bytes, times_wanted(asked))

    def open(self, **options: Any) -> "Job":
        return open_job(self.path, self.groups, self.workers, self._limit(), times=self.times, **options)

    @contextmanager
    def options(self) -> "Iterator[dict[str, Any]]":
        """What readers take, with a bar while they read."""
        with read_options(self.path, self.groups, self.workers, self._limit()) as options:
            yield options | ({} if self.times is None else {"times": self.times})

    def _limit(self) -> str | None:
        return None if self.max_bytes is None else str(self.max_bytes)


def open_job(
    path: Path,
    groups: Path | None = None,
    workers: int = 1,
    max_bytes: str | None = None,
    *,
    ranks: int | None = None,
    passes: int | None = None,
    ray: str = "",
    times: TimesWanted = None,
    tells: bool = True,
) -> "Job":
    """The job at `path`, with a bar while it is read. `tells`: whose times it has is said."""
    from etude.capture import opening

    with read_options(path, groups, workers, max_bytes) as options:
        if ray:
            from etude.base.cluster import spread

            options["spread"] = spread(ray, workers)
        job = opening.open(path, ranks=ranks, passes=passes, times=times, **options)
    if tells:
        tell_times(job)
    return job


@contextmanager
def read_options(path: Path, groups: Path | None, workers: int, max_bytes: str | None) -> "Iterator[dict[str, Any]]":
    """What readers take, from the flags; with a bar while they read."""
    from etude.base import units

    limit = units.parse_bytes(max_bytes) if max_bytes else None
    with progress(f"reading {path}") as advance:
        yield {"groups": groups, "workers": workers, "max_bytes": limit, "advance": advance}
