"""`--device-times-of OTHER`: device times, and the speed of the host, of another recording of the same program."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from etude.base.errors import UsageError
from etude.base.figures import figure
from etude.base.parameters import spelled
from etude.steps.asked.jobs import JobSource

if TYPE_CHECKING:
    from etude.model.job import Job


@dataclass(frozen=True, kw_only=True)
class DeviceTimesInput:
    device_times_of: str | None = figure(
        "path", "another recording of the same program: its device times, and its host's speed", None, panel="Input"
    )
    host_speed: str = figure(
        "text",
        "the factor of host times: a number; `auto` compares the operators of both recordings",
        "auto",
        needs="device_times_of",
        like="0.8",
        panel="Input",
    )


@dataclass(frozen=True, slots=True)
class DeviceTimesSource:
    """Where device times come from, and the factor of host times; None: estimated."""

    source: JobSource
    factor: float | None

    @classmethod
    def of(cls, asked: DeviceTimesInput, source: JobSource) -> "DeviceTimesSource | None":
        if asked.device_times_of is None:
            return None
        other = replace(source, path=Path(asked.device_times_of), groups=None)
        return cls(other, _factor(asked.host_speed, spelled(asked, "host_speed")))

    def put_into(self, job: "Job") -> tuple["Job", list[str]]:
        """The job with these device times, and what to say of it."""
        from etude.make.transform import with_device_times

        found = with_device_times(job, self.source.open(), self.factor)
        how = (
            "as given"
            if self.factor is not None
            else f"estimated from {found.pieces:,} pieces of host time that both recordings have ({found.shared:.0%})"
        )
        return found.job, [
            f"device times are those of {self.source.path}: {found.placed:.1%} of them belong to operators that use "
            "the device in both recordings, the rest is spread over those",
            f"host times are multiplied by {found.host_factor:.3f}, {how}",
        ]


def _factor(text: str, name: str) -> float | None:
    if text == "auto":
        return None
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < 1e6:
        raise UsageError(f"{name}: `{text}` is not a factor", hint="give a number such as 0.8, or `auto`")
    return factor
