from dataclasses import dataclass
from typing import TYPE_CHECKING

from etude.base.errors import UsageError
from etude.base.figures import argument, figure
from etude.base.parameters import is_given, naming, spelled
from etude.steps.asked.job_out import Files, JobOut, made_figures, made_record, write_job
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.make.generate import MicroOptions
    from etude.model.job import Job

PANEL = "Pattern"


@dataclass(frozen=True, kw_only=True)
class GenerateMicro(JobOut):
    """One collective or pattern of messages, with or without concurrent compute

    etude generate micro all_reduce --ranks 64 --bytes 64MB -o job/
    etude generate micro shift:8 --ranks 32 --bytes 1MB,16MB --repeat 4 --to et -o job/
    etude generate micro all_gather --ranks 64 --group 8 --compute 2ms --overlap -o job/
    etude generate micro permutation --ranks 16 --seed 3 --no-write
    """

    pattern: str = argument(
        "text",
        "a collective (all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, ...) or messages: ring, shift:K, "
        "neighbours, ping_pong, exchange, bisection, incast, outcast, chain, permutation, all_pairs",
        like="broadcast",
    )
    ranks: int = figure("count", "ranks of the job", panel=PANEL)
    size: str = figure(
        "text", "input bytes on each rank, `64MB`; several: `1KB,1MB,64MB`", "64MB", key="bytes", like="1KB,1MB",
        panel=PANEL,
    )  # fmt: skip
    repeat: int = figure("count", "number of rounds over all sizes", 1, panel=PANEL)
    group: int = figure("count", "ranks per group of a collective; 0: one group of all", 0, zero=True, panel=PANEL)
    stride: int = figure("count", "distance between the ranks of a group", 1, needs="group", panel=PANEL)
    compute_ns: int = figure("time", "compute before each communication: `1ms`", 0, zero=True, panel=PANEL)
    overlap: bool = figure(
        "flag", "the next compute does not wait for the communication", False, needs="compute", panel=PANEL
    )
    concurrent: bool = figure("flag", "communications do not wait for one another", False, panel=PANEL)
    seed: int = figure("count", "seed of the pattern `permutation`", 0, zero=True, panel=PANEL)


@dataclass(frozen=True, slots=True)
class MicroInputs:
    pattern: str
    options: "MicroOptions"
    files: Files


def inputs(asked: GenerateMicro) -> MicroInputs:
    from etude.base.units import parse_bytes
    from etude.make.generate import MicroOptions

    if is_given(asked, "seed") and asked.pattern != "permutation":
        raise UsageError(f"{spelled(asked, 'seed')} is read only with {spelled(asked, 'pattern')} permutation")
    with naming(asked, "ranks", "bytes", "group", "stride"):
        options = MicroOptions(
            ranks=asked.ranks, sizes=tuple(parse_bytes(one) for one in asked.size.split(",")), repeat=asked.repeat,
            group=asked.group, stride=asked.stride, compute_ns=round(asked.compute_ns), overlap=asked.overlap,
            concurrent=asked.concurrent, seed=asked.seed,
        )  # fmt: skip
    return MicroInputs(asked.pattern, options, Files.of(asked))


def run(given: MicroInputs) -> "tuple[Job, dict[str, list[str]]]":
    from etude.make.generate import micro

    job = micro(given.pattern, given.options)
    return job, write_job(job, given.files)


VERBS = (
    Verb(name="generate micro", asks=GenerateMicro, inputs=inputs, run=run, record=made_record, reads=made_figures),
)
