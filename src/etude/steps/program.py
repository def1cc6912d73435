"""The step of a program that never ran: what it would do, with the times of a recording or of a device's formulas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from etude.base.units import format_bytes
from etude.cost.aten_inputs import dtype_of
from etude.cost.estimates import Estimate, EstimateCase, columns, estimate_of, no_evidence
from etude.cost.framework import open_framework
from etude.cost.framework.operators import MEASURED_ON
from etude.cost.framework.recurrent import STEP_NS, is_timed
from etude.cost.ops import MATRIX
from etude.cost.stacks import Stack, generation_of, open_stack
from etude.cost.stacks.stack import tuned, with_kernels
from etude.cost.traces import ops_of
from etude.machine.open import open_device
from etude.machine.system import Device, System
from etude.make.transform import with_framework_times, with_host, with_operator_times
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace
from etude.run.simulate import Simulated, simulate

if TYPE_CHECKING:
    from etude.capture.dry import DryProgram

STEPS: Final = 3
"""That a dry run should have where the host takes time: it runs ahead of the device, so that one step says too
little."""
KIND_OF_PEAK: Final = "bf16"
FEW: Final = 8
"""Ranks up to which as many steps are run in any case; of more it is one, from an idle device."""
EAGER: Final = "eager"
PROGRAMS: Final = "programs"
"""Kind of their cases."""
MOST_UNKNOWN: Final = 0.2
"""Part of a program's operators that are not in the table, above which its step has no range."""
NO_HOST: Final = "the host takes no time (`--host 18us`)"


@dataclass(frozen=True, slots=True, eq=False)
class ProgramStep:
    """The step of a program on a system."""

    program: DryProgram
    simulated: Simulated
    system: System
    step_ns: int
    flops: int
    """Of matrix products of a step of one rank, the mean of all; what is recomputed counts once."""
    stack: str
    assumptions: tuple[str, ...]
    unknown: float = 0.0
    """Part of its operators that were never recorded, or whose work is not known."""

    @property
    def mfu(self) -> float:
        return self.flops / (self.step_ns / 1e9) / self.system.peak(KIND_OF_PEAK, 1)

    def estimates(self) -> dict[str, Estimate]:
        """Its step and its memory, by eager programs of one GPU without any recording of theirs; of times by formulas
        of a stack nothing was measured."""
        memory, device = self.program.fullest, self.system.device.name
        figures = {
            "step_ns": (self.step_ns, "program step"),
            "peak_allocated_bytes": (memory.peak_allocated_bytes, "program memory"),
            "peak_reserved_bytes": (memory.peak_reserved_bytes, "program memory"),
        }
        found = {
            name: estimate_of(
                float(value), EstimateCase(figure=figure, kind=PROGRAMS, device=device, gpus=len(self.program.job))
            )
            for name, (value, figure) in figures.items()
        }
        if self.stack != EAGER:
            found["step_ns"] = no_evidence(float(self.step_ns), f"for a program by formulas of `{self.stack}`")
        elif _has_unknown_chains(self.program.job):
            about = "for recurrent networks but for those of cuDNN in 32 bits"
            found["step_ns"] = no_evidence(float(self.step_ns), about)
        elif self.unknown > MOST_UNKNOWN:
            about = f"for a program of which {self.unknown:.0%} of the operators were never recorded"
            found["step_ns"] = no_evidence(float(self.step_ns), about)
        return found | {"mfu": found["step_ns"].at(self.mfu)}

    def record(self) -> dict[str, Any]:
        memory = self.program.fullest
        figures = {
            "step_ns": self.step_ns,
            "peak_allocated_bytes": memory.peak_allocated_bytes,
            "peak_reserved_bytes": memory.peak_reserved_bytes,
        }
        return figures | {
            **columns(self.estimates()),
            "mfu": self.mfu,
            "ranks": len(self.program.job),
            "ranks_run": sorted(self.program.memory),
            "memory_by_class": dict(memory.by_class),
            "device_memory_bytes": self.system.memory_bytes,
            "outside_bytes": dict(memory.outside),
            "device_bytes": memory.device_bytes,
            "fits": memory.device_bytes <= self.system.memory_bytes,
            "stack": self.stack,
            "assumptions": list(self.assumptions),
        }


def is_recurrent(job: Job) -> bool:
    """Whether a recurrent network of the device's library is in it."""
    return bool(_recurrent_calls(job))


def _recurrent_calls(job: Job) -> set[tuple[str, str]]:
    """Names of recurrent operators of the device's library, with the types of their arguments."""
    found = set()
    for trace in job.traces:
        codes, names = trace.coded("name")
        which = np.flatnonzero(np.isin(codes, [i for i, name in enumerate(names) if "_rnn" in name]))
        types, texts = trace.coded("in_types", which)
        found |= {(names[codes[row]], texts[one] if one >= 0 else "") for row, one in zip(which, types, strict=True)}
    return found


def _has_unknown_chains(job: Job) -> bool:
    return any(not is_timed(name, dtype_of(types)) for name, types in _recurrent_calls(job))


def predict_program(
    program: DryProgram,
    system: System,
    *,
    stack: Stack | None = None,
    times_of: Job | None = None,
    host_ns: int | None = None,
    **options: Any,
) -> ProgramStep:
    """The step of a dry run on a system; of several, from the end of the first to that of the last. `times_of`: a
    recording whose operators took as long as these will; else operators take on a GPU what those of PyTorch do by name,
    or with a `stack` the system's formulas with its efficiency. `host_ns`: of the host for each operator."""
    machine, unknown = system.for_ranks(len(program.job)), 0.0
    if times_of is not None:
        like = timed_like(program, times_of, machine.device)
        timed, assumed = like.job, list(like.assumptions)
    elif stack is None and not machine.device.cpu:
        timed, assumed, unknown = _by_name(program, machine.device, host_ns)
    else:
        by = stack or open_stack(EAGER)
        machine = tuned(with_kernels(machine, by), by.on(generation_of(machine.device.name), experts=False))
        timed, assumed = _by_formulas(program, by, host_ns)
    done = simulate(timed, machine, **options)
    ends = list(done.step_ends().values())
    step_ns = (ends[-1] - ends[0]) // (len(ends) - 1) if len(ends) > 1 else done.makespan_ns
    memory = program.fullest
    if memory.device_bytes > machine.memory_bytes:
        assumed.append(f"it does not fit: {format_bytes(memory.device_bytes)} of {format_bytes(machine.memory_bytes)}")
    told = EAGER if stack is None else stack.name
    return ProgramStep(program, done, machine, step_ns, _flops(program.job), told, (*assumed, *done.notes), unknown)


def timed_like(program: DryProgram, recorded: Job, device: str | Device | None) -> DryProgram:
    """The program with the times of a recording. `device`: what it runs on; None: the host."""
    known = open_device(device) if isinstance(device, str) else device
    found = with_operator_times(program.job, recorded, known)
    told = [
        f"{found.by_key:.0%} of the operators' time was recorded with the same shapes, {found.by_name:.0%} with "
        f"others, {max(0.0, 1 - found.by_key - found.by_name):.0%} is that of formulas"
    ]
    if found.placed < TOLD:
        told.append(f"{1 - found.placed:.0%} of the recording's device time has no place in the program")
    return replace(program, job=found.job, assumptions=(*program.assumptions, *told))


TOLD: Final = 0.99
"""Part of a recording's device time from which on nothing is said of the rest."""


def _by_name(program: DryProgram, device: Device, host_ns: int | None) -> tuple[Job, list[str], float]:
    found = with_framework_times(program.job, open_framework(), device, host_ns=host_ns)
    of_host = "the host, and" if host_ns is None else f"the host {host_ns / 1000:g} us for each,"
    said = f"operators take what those of their name took on {MEASURED_ON}: {of_host} kernels beyond their formulas"
    assumed = [*program.assumptions, said]
    if is_recurrent(program.job):
        assumed.append(
            f"recurrent networks take {STEP_NS / 1000:g} us or more for a time step of each layer and direction, "
            "forward and again backward, as those of two programs did on an H200"
        )
    if found.strange:
        more = f" and {len(found.strange) - NAMED} more" if len(found.strange) > NAMED else ""
        which = f"{', '.join(found.strange[:NAMED])}{more} ({found.calls:.1%} of the operators)"
        assumed.append(
            f"{which} were not recorded there, or their work is not known: they take what any operator takes"
        )
    return found.job, assumed, found.calls


NAMED: Final = 3


def _by_formulas(program: DryProgram, stack: Stack, host_ns: int | None) -> tuple[Job, list[str]]:
    said = f"the host takes {host_ns / 1000:g} us for each operator" if host_ns else NO_HOST
    formulas = f"operators take the time of formulas with the efficiency of the stack {stack.name}"
    return _launched(program.job, host_ns) if host_ns else program.job, [*program.assumptions, formulas, said]


def _launched(job: Job, host_ns: int) -> Job:
    """The job with a host that takes as long for each operator; what they take on the device remains unknown."""

    def made(trace: Trace) -> Trace:
        found = with_host(trace, np.full(len(trace), host_ns), np.zeros(len(trace), np.int64))
        return found.replace(duration_ns=np.where(found.cpu == 1, found.duration_ns, UNKNOWN))

    return job.replace(traces=tuple(made(trace) for trace in job.traces), values={}, timing=None)


def _flops(job: Job) -> int:
    """Operations of matrix products and attention that are not recomputed, the mean of ranks."""
    each = []
    for trace in job.traces:
        steps = max(len(np.unique(trace.step)), 1)
        codes, words = trace.coded("phase")
        again = np.array([word == "recompute" for word in words] + [False])[codes]
        product = np.isin(ops_of(trace).op_class, [int(one) for one in MATRIX]) & (trace.kind == Kind.COMP) & ~again
        each.append(int(trace.flops[product].clip(0).sum()) // steps)
    return int(np.mean(np.array(each)[job.trace_of])) if each else 0
