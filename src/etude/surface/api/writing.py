"""From a job or a run to files: recordings, copies, replays."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.model.job import Job
from etude.surface.api.given import keywords, refuse_unknown

if TYPE_CHECKING:
    from etude.make.transform import AnonymiseOptions


def collect(command: Sequence[str], out: str | os.PathLike[str], *, whole: bool = False, **options: Any) -> Any:
    """Runs a PyTorch command, unchanged, and records every rank of it; options are `steps`, `warmup`, `stacks`, ...

    etude.collect(["torchrun", "train.py"], "run/", steps=3).exit_code
    """
    from etude.capture.collect import CollectOptions, launch

    if whole and (steps := [name for name in ("steps", "warmup") if name in options]):
        raise UsageError(f"`{steps[0]}` was given, but a whole run is recorded", where="etude.collect")
    return launch(command, out, CollectOptions.from_dict(options), whole=whole)


def synthesise(learned: Any, **options: Any) -> Job:
    """A job of any size that behaves like those that were learned; options are `ranks`, `steps`, `seed`, ...

    etude.extend.synthesise(etude.extend.learn([job]), ranks=8, seed=1)
    """
    from etude.make.synth import MakeOptions, make

    refuse_unknown("synthesise", options, keywords(MakeOptions))
    return make(learned, MakeOptions(**options))


def anonymise(job: Job, options: AnonymiseOptions | None = None, **more: Any) -> tuple[Job, Any]:
    """(the copy, what was hidden); options are `keep_shapes`, `keep_times`, `per_octave`, `work`, `name`.

    copy, hidden = etude.anonymise(job, keep_shapes=True)
    """
    from etude.make.transform import AnonymiseOptions
    from etude.make.transform import anonymise as anonymised

    refuse_unknown("anonymise", more, keywords(AnonymiseOptions))
    if options is not None and more:
        raise UsageError("options are given twice: as one value and by name", where="etude.anonymise")
    return anonymised(job, options or AnonymiseOptions(**more))


def replay(
    job: Job, *, ranks: Sequence[int] | None = None, out: str | os.PathLike[str] | None = None, **options: Any
) -> dict[str, Any]:
    """Runs a job's operators again on this machine (needs PyTorch) and says how close it comes; one rank by default.

    etude.replay(job, iterations=5)["step_ns"]
    """
    from etude.run.replay import PlayerOptions, of_ranks, play, summary
    from etude.run.replay import plan as planned

    refuse_unknown("replay", options, keywords(PlayerOptions))
    chosen = list(ranks) if ranks is not None else [int(job.ranks[0])]
    folder = None if out is None else Path(out)
    asked = PlayerOptions(**options)
    results = [play(program, asked, out=folder) for program in planned(job, chosen)]
    return summary(results, of_ranks([one["coverage"] for one in results]))
