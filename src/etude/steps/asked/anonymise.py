"""A copy of a job without names: what `etude anonymise` asks for."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.figures import figure, part, switch
from etude.base.outputs import OutputPlace, Printed, Written
from etude.base.talk import say
from etude.steps.asked.job_out import JobFiles, To, write_job
from etude.steps.asked.jobs import JobInput, JobSource
from etude.steps.asked.times_on import TimesOnInput, times_system, with_times

if TYPE_CHECKING:
    from etude.machine.system import System
    from etude.make.transform import AnonymiseOptions


KEPT = "What is kept"


@dataclass(frozen=True, kw_only=True)
class Anonymise(JobInput, TimesOnInput, Written):
    """A copy of a job with the same simulated times, without names, shapes or code

    Exact sizes and times are kept, and can identify a known model: `--round` makes them coarse, `etude learn` produces
    another job with the same behaviour.

    etude anonymise run/ -o shared/ --to et
    etude anonymise run/ -o shared/ --round 8
    """

    to: To = figure(
        "choice", "write one Parquet folder (ranks share traces), or one file per rank", To.PARQUET, needs="out"
    )
    keep_shapes: bool = switch("keep shapes, types and strides", panel=KEPT)
    drop_times: bool = switch("leave out recorded start times, as `--round` does", panel=KEPT)
    per_octave: int = figure(
        "count",
        "round times, bytes and FLOPs to this many values per octave (64: within 0.6%, 8: 5%, 1: 42%), and leave out "
        "start times; 0: exact",
        0,
        key="round",
        panel=KEPT,
    )
    work: bool = switch(
        "fill in FLOPs and bytes that follow from names and shapes, before they are removed", panel=KEPT
    )
    name: str = figure("text", "name of the copy", "anonymous", needs="out", like="copy")
    key: str | None = figure(
        "out", "write the meaning of each token, as JSON; keep this file private", None, panel=KEPT, like="key.json"
    )
    force: bool = switch("replace what is there", needs="out|key", names=("-f",))
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class AnonymiseInputs:
    source: JobSource
    times_on: "System | None"
    options: "AnonymiseOptions"
    files: JobFiles
    key: OutputPlace | None


def inputs(asked: Anonymise) -> AnonymiseInputs:
    from etude.make.transform import AnonymiseOptions
    from etude.steps.asked.converting import check_place

    source, place = JobSource.of(asked), OutputPlace.of(asked)
    if place is not None:
        check_place(place.path, place.force, source=source.path)
    files = JobFiles(out=place.path if place else None, to=asked.to, force=asked.force)
    is_rounded = asked.per_octave > 0
    options = AnonymiseOptions(
        keep_shapes=asked.keep_shapes,
        keep_times=is_rounded or not asked.drop_times,
        per_octave=asked.per_octave,
        work=asked.work,
        name=asked.name,
    )
    key = None if asked.key is None else OutputPlace(Path(asked.key), asked.force)
    return AnonymiseInputs(source, times_system(asked), options, files, key)


def run(given: AnonymiseInputs) -> list[dict[str, Any]]:
    from etude.base.files import writing
    from etude.make.transform import anonymise, kept

    copy, hidden = anonymise(with_times(given.source.open(), given.times_on), given.options)
    write_job(copy, given.files)
    if given.key is not None:
        import msgspec

        with writing(given.key.path, force=given.key.force) as file:
            file.write_bytes(msgspec.json.format(msgspec.json.encode(hidden.tokens)))
        say(f"wrote {given.key.path}: the meaning of each token")
    return hidden.rows() + kept(given.options)
