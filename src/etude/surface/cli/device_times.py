"""`--device-times-of OTHER`: device times, and the speed of the host, of another recording of the same program."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from etude.base.errors import UsageError
from etude.surface.cli.inputs import open_job

if TYPE_CHECKING:
    from etude.model.job import Job

DeviceTimesOf = Annotated[
    Path | None,
    typer.Option(help="Another recording of the same program: its device times, and its host's speed."),
]
HostSpeed = Annotated[
    str,
    typer.Option(
        help="With --device-times-of, the factor of host times: a number; `auto` compares the operators of both."
    ),
]


def with_times_of(
    job: "Job", other: Path | None, host_speed: str, workers: int, max_bytes: str | None
) -> tuple["Job", list[str]]:
    """The job with the device times of another recording, and what to say of it."""
    factor = _factor(host_speed)
    if other is None:
        if factor is not None:
            raise UsageError("--host-speed needs --device-times-of", hint="or --jitter host=..., --compute scale=...")
        return job, []
    from etude.make.transform import with_device_times

    found = with_device_times(job, open_job(other, None, workers, max_bytes), factor)
    how = (
        "as given"
        if factor is not None
        else f"estimated from {found.pieces:,} pieces of host time that both recordings have ({found.shared:.0%})"
    )
    return found.job, [
        f"device times are those of {other}: {found.placed:.1%} of them belong to operators that use the device in "
        "both recordings, the rest is spread over those",
        f"host times are multiplied by {found.host_factor:.3f}, {how}",
    ]


def _factor(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < 1e6:
        raise UsageError(f"--host-speed: `{text}` is not a factor", hint="give a number such as 0.8, or `auto`")
    return factor
