"""What is asked of the step of a program that never ran."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, switch
from etude.base.outputs import Printed
from etude.base.parameters import is_given, spelled
from etude.base.talk import say
from etude.run.simulate.settings import SimulationSettings
from etude.steps.asked.jobs import JobSource
from etude.steps.asked.simulation import PANEL, OnSystem, OpsInput, SimulationOptions, options_of

if TYPE_CHECKING:
    from etude.capture.dry import DryProgram, DrySettings
    from etude.cost.stacks import Stack
    from etude.machine.system import System
    from etude.model.job import Job
    from etude.steps.program import ProgramStep

PROGRAM = "Program"


@dataclass(frozen=True, kw_only=True)
class PredictProgram(OnSystem, OpsInput):
    """The step and the memory of a program that never ran, on a system

    etude predict program train.py --world 512 --system dgx-h100
    etude predict program "torchrun --nproc-per-node 8 train.py --config big.toml" --system dgx-h100
    etude predict program train.py --world 64 --system dgx-h200 --times-of run/
    etude predict program train.py --world 64 --network flow --host 10us --system dgx-h100

    The program runs without numbers and without a GPU, as `etude collect --dry` runs it; then its job is simulated.
    `--times-of` takes a recording of the same program at another size, or on fewer ranks of the same device: operators
    take as long as there, and so does the host. Without it operators take what PyTorch's of their names took on an
    H200 and its host, relative to the formulas of the system's device; `--host` states the host's time, `--stack`
    whose efficiency formulas have, in which case the host takes none by itself.
    """

    program: str = argument(
        "text", "the program: a file of Python, or the words of a command", metavar="COMMAND", like="train.py"
    )
    world: int | None = figure(
        "count", "ranks of the program; default: as its launcher says, or 1", None, panel=PROGRAM, like=8
    )
    node: int | None = figure(
        "count",
        "ranks of a node, where the command does not say so; default: that of the system",
        None,
        panel=PROGRAM,
        like=4,
    )
    answer: tuple[str, ...] = figure(
        "several",
        "value of a tensor that the program decides by: loss=2.0, train.py:31=0",
        (),
        panel=PROGRAM,
        like=("loss=2.0",),
        metavar="NAME=VALUE",
        plain=True,
    )
    whole: bool = switch(
        "all of the program, in place of one step: of one without optimizer, all calls of its model", panel=PROGRAM
    )
    times_of: str | None = figure(
        "path", "a recording of the program at another size: its operators' and its host's times", None, panel=PROGRAM
    )
    host: int | None = figure(
        "time", "host time of each operator; default: by its name", None, like="10us", panel=PROGRAM, zero=False
    )
    stack: str | None = figure(
        "noun",
        "formulas with the efficiency of this software stack: a name that `etude stacks` lists, or a YAML file",
        None,
        of=str,
        like="torchtitan",
        panel="Machine",
    )
    settings: SimulationSettings = part(
        SimulationSettings, PANEL, but=("collective_times", "concurrent_network", "remote_memory", "fold")
    )
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramInputs:
    command: tuple[str, ...]
    settings: "DrySettings"
    system: "System"
    stack: "Stack | None"
    times_of: JobSource | None
    host_ns: int | None
    options: SimulationOptions


def program_inputs(asked: PredictProgram) -> ProgramInputs:
    from etude.capture.dry import DrySettings, stated_answers
    from etude.cost.stacks import open_stack
    from etude.machine import open_system
    from etude.steps.program import FEW, STEPS

    system = open_system(asked.system)
    given = [name for name in ("host", "ops", "stack") if is_given(asked, name)]
    if asked.times_of is not None and given:
        names = " and ".join(spelled(asked, name) for name in given)
        raise UsageError(f"{spelled(asked, 'times_of')} has all times: give it without {names}")
    steps = STEPS if asked.times_of or asked.host or (asked.world or 1) <= FEW else 1
    settings = DrySettings(
        world=asked.world or 0,
        local_world=asked.node or system.levels[0].size,
        answers=stated_answers(asked.answer),
        warmup=0 if asked.whole else 1,
        steps=0 if asked.whole else steps,
    )
    return ProgramInputs(
        command=command_of(asked.program, spelled(asked, "program")),
        settings=settings,
        system=system,
        stack=None if asked.stack is None else open_stack(asked.stack),
        host_ns=asked.host,
        options=options_of(asked, system),
        times_of=None if asked.times_of is None else JobSource(Path(asked.times_of)),
    )


def command_of(text: str, where: str) -> tuple[str, ...]:
    """The words of a command; of a file of Python alone, with the interpreter before it."""
    try:
        words = shlex.split(text)
    except ValueError as problem:
        raise UsageError(f"`{text}` is no command: {problem}", where=where) from None
    if not words:
        raise UsageError("is empty", where=where, hint="for example train.py, or `torchrun train.py --layers 8`")
    return ("python", *words) if words[0].endswith(".py") else tuple(words)


def like_recording(program: "DryProgram", recorded: "Job", device: str | None) -> "DryProgram":
    """A dry run with the times of a recording."""
    from etude.steps.program import timed_like

    return timed_like(program, recorded, device)


def predicted_program(given: ProgramInputs) -> "ProgramStep":
    from etude.capture.dry import dry_program
    from etude.steps.program import predict_program

    recorded = None if given.times_of is None else given.times_of.open()
    program = dry_program(given.command, name="program", device=given.system.device, settings=given.settings)
    found = predict_program(
        program, given.system, stack=given.stack, times_of=recorded, host_ns=given.host_ns, **given.options.by_name()
    )
    for assumption in found.assumptions:
        say(f"assumed: {assumption}")
    return found


def program_figures(found: "ProgramStep") -> dict[str, Any]:
    """The most important figures, formatted."""
    from etude.base.units import format_bytes, format_time

    memory = found.program.fullest
    return {
        "step": found.estimates()["step_ns"].text(lambda ns: format_time(round(ns))),
        "model FLOP/s utilisation": f"{found.mfu:.1%}",
        "peak memory": format_bytes(memory.peak_allocated_bytes),
        "in segments of the allocator": format_bytes(memory.peak_reserved_bytes),
        "of the device": f"{format_bytes(memory.device_bytes)} of {format_bytes(found.system.memory_bytes)}",
        "fits": "yes" if memory.device_bytes <= found.system.memory_bytes else "no",
        "ranks": f"{len(found.program.job):,}, of which {len(found.program.memory)} were run",
    }
