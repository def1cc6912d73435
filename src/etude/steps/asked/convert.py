"""A job in another format: what `etude convert` asks for."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, switch
from etude.base.parameters import is_given, spelled
from etude.base.talk import progress, say
from etude.steps.asked.converting import Conversion, ConvertOptions
from etude.steps.asked.job_out import tell
from etude.steps.asked.jobs import JobInput, JobSource

if TYPE_CHECKING:
    from etude.steps.asked.converting import WrittenJob


TEXT = "Text workloads"


@dataclass(frozen=True, kw_only=True)
class Convert(JobInput, ConvertOptions):
    """A job in another format: Chakra `.et`, JSON, Parquet; all files of ASTRA-sim; flows; also from ASTRA-sim text

    etude convert job/ et/ --dialect astra
    etude convert job/ columns/ --to parquet
    etude convert job/ run/ --to astra --system dgx-h100
    etude convert job/ flows.csv --to flows --system dgx-h100
    etude convert resnet.txt et/ --ranks 8

    Nodes, edges, attributes, groups and recorded times are the same in each. Parquet also says where a job came from
    and how its times were made; a note lists what `.et` and JSON cannot represent.

    `.et` files hold the job as it is, and a note says what ASTRA-sim would hang or abort on; `--dialect astra` writes
    files that it can run: numbered groups, one size on all members of a collective, one operation for a copy. A job
    that is generated into `.et` files, and one that is generated and then converted, are the same bytes.
    """

    out: str = argument("out", "the folder to write; it appears when it is complete", names=("-o",))
    ranks: int | None = figure("count", "ranks that run an ASTRA-sim text workload (`w.txt`)", None, panel=TEXT)
    passes: int | None = figure("count", "passes over a text workload's layers; by default 1", None, panel=TEXT)
    force: bool = switch("replace existing output", names=("-f",))


@dataclass(frozen=True, slots=True)
class ConvertInputs:
    source: JobSource
    out: Path
    how: Conversion
    force: bool
    ranks: int | None
    passes: int | None


def inputs(asked: Convert) -> ConvertInputs:
    from etude.capture.opening import is_text
    from etude.steps.asked.converting import check_place

    path, out, force = Path(asked.path), Path(asked.out), asked.force
    check_place(out, force, source=path)
    how = Conversion.of(asked)
    if is_text(path):
        return ConvertInputs(JobSource(path), out, how, force, asked.ranks, asked.passes)
    for name in ("ranks", "passes"):
        if is_given(asked, name):
            raise UsageError(f"{spelled(asked, name)} is read only where PATH is a text workload (`w.txt`)")
    return ConvertInputs(JobSource.of(asked), out, how, force, None, None)


def run(given: ConvertInputs) -> "tuple[WrittenJob, str]":
    from etude.steps.asked.converting import write_as
    from etude.store import cards

    source = replace(given.source, times=given.source.times or given.how.times())
    job = source.open(ranks=given.ranks, passes=given.passes)
    card = cards.find(given.source.path)
    return write_as(job, given.out, given.how, card=card, force=given.force, progress=progress), given.how.to.value


def show(result: "tuple[WrittenJob, str]") -> None:
    written, to = result
    tell(written)
    if written.left_behind:
        say(f"not written, because {to} cannot represent it: {'; '.join(written.left_behind)}")
