"""What is asked of a program whose graph is validated."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part
from etude.base.outputs import OutputPlace, Printed, Written
from etude.base.parameters import naming
from etude.base.units import counted, format_time, parse_time

if TYPE_CHECKING:
    from etude.decide.validate import Validated, ValidateOptions
    from etude.decide.validate.measuring import DelayLength

PLACES, MEASURED = "Where", "What is measured"
HALF = "50%"
"""The delay, if none is asked for."""


@dataclass(frozen=True, kw_only=True)
class Validate(Written):
    """Is the graph of a program right? Known delays are put into it, and the changes compared with predicted ones

    etude validate -- python train.py
    etude validate --place layers.3 --place device:layers.3 --delay 5ms -- python train.py
    etude validate -o validated/ --json -- torchrun --nproc-per-node 2 train.py

    The program is recorded, as by `etude collect`, and linked. Then it runs again, un-profiled, with a delay in each
    step of a block of steps, and without one in the blocks before and after; what a delay changes is the median of
    these differences. The graph predicts the change: the delay is put in at the recorded place, and it is simulated.
    A program is ended when all is recorded or measured; what it prints is not shown unless it fails.

    Places: `layers.3` or `module:layers.3`, the host spins before the module; `backward:layers.3`, before its backward
    pass; `device:layers.3`, extra work on its stream (on a CPU: operators); `rank1:layers.3`, one rank spins.

    A prediction is right if it is off by at most 15% of the measured change, or of half the delay if that is more: a
    delay that the program hides must be predicted as hidden. The score is the share of right ones.
    """

    command: tuple[str, ...] = argument(
        "command", "the command to run, after `--`", metavar="-- COMMAND...", like="python train.py"
    )
    place: tuple[str, ...] = figure(
        "several", "where to put delays; by default places of all kinds are chosen", (), like="layers.3", panel=PLACES
    )
    modules: int = figure("count", "number of modules that are chosen", 3, panel=PLACES)
    delay: tuple[str, ...] = figure(
        "several",
        "length of a delay: a time, or a share of a step, by default 50%; several are tried in turn",
        (),
        like="5ms",
        panel=MEASURED,
    )
    repeats: int = figure("count", "blocks of steps with each delay", 8, panel=MEASURED)
    steps: int = figure("count", "steps of the recording, and of a block", 3, panel=MEASURED)
    warmup: int = figure("count", "steps before the first that is recorded or measured", 8, panel=MEASURED)
    out: str | None = figure("out", "folder for the recording and the result", None, names=("-o",))
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class ValidateInputs:
    command: tuple[str, ...]
    options: "ValidateOptions"
    place: OutputPlace | None


def validate_inputs(asked: Validate) -> ValidateInputs:
    from etude.decide.validate.measuring import LEAST_WARMUP, ValidateOptions
    from etude.decide.validate.places import AskedPlace

    if asked.warmup < LEAST_WARMUP:
        with naming(asked, "warmup"):
            hint = "the modules of a step are known after the second"
            raise UsageError(f"{asked.warmup} is less than {LEAST_WARMUP}", hint=hint)
    with naming(asked, "place"):
        places = tuple(AskedPlace.parse(text) for text in asked.place)
    with naming(asked, "delay"):
        delays = tuple(length_of(text) for text in asked.delay or (HALF,))
    chosen = {} if places else {"modules": asked.modules}
    options = ValidateOptions(
        places=places, delays=delays, repeats=asked.repeats, steps=asked.steps, warmup=asked.warmup, **chosen
    )
    return ValidateInputs(asked.command, options, OutputPlace.of(asked))


def length_of(text: str) -> "DelayLength":
    """`5ms`, or `50%` of a step."""
    from etude.decide.validate.measuring import DelayLength

    if not text.endswith("%"):
        time_ns = parse_time(text)
        if time_ns <= 0:
            raise UsageError(f"`{text}` is not a delay", hint="5ms, or 50% of a step")
        return DelayLength(time_ns=round(time_ns))
    try:
        share = float(text[:-1]) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 100:
        raise UsageError(f"`{text}` is not a share of a step", hint="50%, or a time as 5ms")
    return DelayLength(share=share)


def validated(given: ValidateInputs) -> "Validated":
    from etude.decide.validate import validate

    return validate(given.command, given.options, given.place)


def validate_rows(found: "Validated") -> list[dict[str, Any]]:
    return [one.row() for one in found.places]


def validate_words(found: "Validated") -> Iterator[str]:
    right = sum(one.within for one in found.places)
    yield f"score {found.score:.2f}: {right} of {counted(len(found.places), 'change')} predicted within 15%"
    step = found.step_ns
    yield f"a step without delays: measured {format_time(step['measured'])}, predicted {format_time(step['predicted'])}"
