"""`generate` of a model that PyTorch builds: any module of a file, or a config that no block of Etude is for. It is run
without numbers, as `etude collect --dry` runs a script."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from etude.base.errors import UsageError
from etude.base.figures import figure, key_of, read_mapping, switch
from etude.base.parameters import given_in, is_given, naming, spelled
from etude.base.shapes import names_in
from etude.base.trust import check_code
from etude.base.units import counted, format_bytes, format_count
from etude.make.generate import Plan
from etude.steps.asked.job_out import JobFiles, MemoryLimit, write_job

if TYPE_CHECKING:
    from etude.capture.dry import DryProgram, DrySettings
    from etude.capture.dry.driven import DrivenProgram

ANY = "Any model"
DEVICE: Final = "h100"
OF_CONFIGS: Final = ("micro_batch", "seq", "attention")
"""Axes that are read of a config without `--inputs`, or of transformers."""
READ: Final = names_in("""
    gpus zero dp_shard reshard bucket recompute precision grad_dtype master optimizer clip global_batch steps
""")
SCRIPT: Final = "`etude collect --dry` takes a training script of your own, with any parallelism"


@dataclass(frozen=True, kw_only=True)
class DrivenInput:
    """Parameters of a model that PyTorch builds."""

    program: str | None = figure(
        "text",
        "any torch.nn.Module, run in PyTorch without numbers: the function or class of a file that returns it",
        None,
        like="model.py:build",
        metavar="FILE.py:NAME",
        panel=ANY,
    )
    inputs: str | None = figure(
        "text",
        "tensors that its `forward` takes: tokens=int64[4,8192], mask=bool[4,8192]",
        None,
        like="tokens=int64[4,128]",
        metavar="NAME=TYPE[SIZES]",
        panel=ANY,
        needs="program|hf|model",
        plain=True,
    )
    dry: bool = switch(
        "run the model of a config in PyTorch, even if its family is a known one; needs transformers",
        panel=ANY,
        needs="hf|model",
    )
    device: str | None = figure(
        "text",
        f"the GPU that PyTorch finds, of the catalogue; default: {DEVICE}",
        None,
        like="h200",
        metavar="NAME",
        panel=ANY,
        needs="program|hf|model",
        plain=True,
    )
    answer: tuple[str, ...] = figure(
        "several",
        "value of a tensor that the model decides by, or a number of rows, by the line that asks: model.py:31=128",
        (),
        like=("loss=2.0",),
        metavar="NAME=VALUE",
        panel=ANY,
        needs="program|hf|model",
        plain=True,
    )


OWN: Final = tuple(f.name for f in fields(DrivenInput))


@dataclass(frozen=True, slots=True)
class DrivenInputs:
    program: DrivenProgram
    settings: DrySettings
    gpus: int
    device: str
    name: str
    limit: MemoryLimit
    files: JobFiles
    assumptions: tuple[str, ...]


def config_file(asked: Any) -> Path | None:
    """The `config.json` that was given, if there is such a file."""
    given = Path(asked.hf or asked.model or "?")
    file = given / "config.json" if given.is_dir() else given
    return file if file.suffix == ".json" and file.is_file() else None


def needs_transformers(problem: UsageError) -> UsageError:
    """The same problem, with what would help where transformers is not installed."""
    more = "with `pip install transformers` it is built and run without numbers"
    return UsageError(problem.problem, where=problem.where, hint=f"{more}; {problem.hint}" if problem.hint else more)


def driven_inputs(asked: Any) -> DrivenInputs:
    """The run of `--program`, or of a config."""
    from etude.capture.dry import DrySettings, stated_answers
    from etude.capture.dry.driven import DrivenProgram, check_program, input_tensors
    from etude.machine import device_names

    if asked.program is not None:
        with naming(asked, "program"):
            check_program(asked.program)
        check_code(asked.program)
        given, name = {"program": asked.program}, Path(asked.program.rpartition(":")[0]).stem
        if asked.inputs is None:
            hint = "the tensors that `forward` takes, for example tokens=int64[4,8192]"
            raise UsageError(f"{spelled(asked, 'inputs')} is missing", where=spelled(asked, "program"), hint=hint)
    else:
        given, name = _of_config(asked)
    with naming(asked, "inputs"):
        tensors = input_tensors(asked.inputs) if asked.inputs is not None else []
    plan, keys = _plan(asked, tensors[0].shape[0] if tensors and tensors[0].shape else 1)
    limit, device = MemoryLimit.of(asked), asked.device
    assumed = () if device else (f"the device is an {DEVICE}: --device names another",)
    if device is None and asked.memory in device_names():
        device, assumed = asked.memory, ()
    program = DrivenProgram(**given, inputs=asked.inputs or "", **_of_plan(asked, plan, keys))
    with naming(asked, "answer"):
        settings = DrySettings(steps=plan.steps, answers=stated_answers(asked.answer))
    more = _assumed(plan, program)
    return DrivenInputs(
        program, settings, plan.gpus, device or DEVICE, asked.name or name, limit, JobFiles.of(asked), (*assumed, *more)
    )


def _of_config(asked: Any) -> tuple[dict[str, str], str]:
    """(What the driver is given, a name for the job.)"""
    file = config_file(asked)
    if file is None:
        hint = f"{spelled(asked, 'hf')} config.json"
        raise UsageError(f"there is no config `{asked.hf or asked.model}`", where=spelled(asked, "dry"), hint=hint)
    config = read_mapping(file)
    name = str(config.get("_name_or_path") or config.get("model_type") or file.stem).rstrip("/").rsplit("/", 1)[-1]
    return {"hf": str(file)}, name


def _plan(asked: Any, rows: int) -> tuple[Plan, dict[str, Any]]:
    """(The plan, what was given of it.) `rows`: the first size of the first input, samples of a micro-batch."""
    flags = given_in(asked.axes)
    keys: dict[str, Any] = {} if asked.plan is None else read_mapping(asked.plan)
    keys |= flags
    usual = {key_of(f): f.default for f in fields(Plan)} | {f.name: f.default for f in fields(Plan)}
    read = (*READ, *(OF_CONFIGS if asked.program is None and asked.inputs is None else ()))
    read = (*read, "attention") if asked.program is None else read
    for key, value in keys.items():
        if key not in read and key in usual and value not in (usual[key], ()):
            shown = spelled(asked, key) if key in flags else f"{spelled(asked, 'plan')} {asked.plan}: `{key}`"
            raise _unread(asked, key, shown)
    with naming(asked, "plan", *flags):
        told = keys if asked.inputs is None else keys | {"micro_batch": rows}
        plan = Plan.from_dict(told, str(asked.plan or "plan"))
    plan.refuse_unread(flags, SimpleNamespace(experts=0, name="it"), lambda name: spelled(asked, name))
    return plan, keys


def _unread(asked: Any, key: str, shown: str) -> UsageError:
    if key in ("micro_batch", "seq"):
        return UsageError(
            f"{shown} is not read with {spelled(asked, 'inputs')}, which states all sizes", hint="leave one of them out"
        )
    why = "of a model that PyTorch runs" if asked.program is None else f"with {spelled(asked, 'program')}"
    return UsageError(f"{shown} is not read {why}", hint=SCRIPT)


def _of_plan(asked: Any, plan: Plan, keys: dict[str, Any]) -> dict[str, Any]:
    """What the driver is given of a plan; what PyTorch does not have is refused."""

    def choose(name: str, known: dict[Any, Any], hint: str = SCRIPT) -> Any:
        value = getattr(plan, name)
        value = getattr(value, "value", value)
        if value not in known:
            raise UsageError(f"{spelled(asked, name)} {value} is not supported of a model that PyTorch runs", hint=hint)
        return known[value]

    kept = "0 (DistributedDataParallel) or 3 (fully_shard); --zero 3 --no-reshard keeps weights until the backward pass"
    zero = choose("zero", {0: 0, 3: 3}, f"{kept}; {SCRIPT}")
    if "grad_dtype" in keys and zero != 3 and plan.grad_dtype != "fp32":
        raise UsageError(f"{spelled(asked, 'grad_dtype')} is read only with {spelled(asked, 'zero')} 3", hint=SCRIPT)
    weights = "fp32" if plan.master or plan.precision.value == "fp32" else "bf16"
    return {
        "zero": zero,
        "dp_shard": plan.dp_shard,
        "keep_gathered": int(not plan.reshard),
        "bucket_bytes": plan.bucket * (4 if weights == "fp32" else 2) if "bucket" in keys else 0,
        "recompute": choose("recompute", {one: one for one in ("none", "full", "full:needed")}),
        "precision": choose("precision", {"bf16": "bf16", "fp32": "fp32"}),
        "weights": weights,
        "grad_dtype": choose("grad_dtype", {"fp32": "fp32", "bf16": "bf16"}),
        "optimizer": choose("optimizer", {one: one for one in ("adamw", "sgd", "momentum")}),
        "clip": int(plan.clip),
        "accumulate": plan.micro_batches,
        "micro_batch": plan.micro_batch if asked.inputs is None else 1,
        "seq": plan.seq,
        "attention": choose("attention", {"flash": "", "unfused": "eager"}),
    }


def _assumed(plan: Plan, program: DrivenProgram) -> tuple[str, ...]:
    found = []
    if plan.gpus > 1 and not program.zero:
        found.append("DistributedDataParallel reduces gradients in the type of weights, in buckets of its own")
    if program.is_sharded(plan.gpus) and program.accumulate > 1:
        found.append("gradients are scattered after every micro-batch, as fully_shard does")
    if program.precision == "bf16" and program.weights == "fp32" and not program.is_sharded(plan.gpus):
        found.append("products are in bf16 by autocast, of weights in fp32")
    return tuple(found)


def refuse_driven(asked: Any) -> None:
    """Refuses what is read only of a model that PyTorch builds."""
    for name in OWN:
        if is_given(asked, name):
            hint = f"{spelled(asked, 'program')} FILE.py:NAME, or a config with {spelled(asked, 'dry')}"
            raise UsageError(f"{spelled(asked, name)} is read only of a model that PyTorch runs", hint=hint)


# -- the run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DrivenJob:
    """A model that was run without numbers."""

    found: DryProgram
    name: str

    def summary(self) -> dict[str, Any]:
        from etude.capture.dry import dry_record

        numbers = dry_record(self.found) | {"memory_peak_bytes": self.found.fullest.peak_allocated_bytes}
        return {key: value for key, value in numbers.items() if key != "params"}  # operators do not say them


def run_driven(given: DrivenInputs) -> tuple[DrivenJob, dict[str, Any]]:
    """The job, and what ASTRA-sim cannot run of it."""
    from etude.capture.dry import dry_program

    if given.program.hf and find_spec("transformers") is None:
        hint = "pip install transformers"
        raise UsageError("transformers, which builds the model, is not installed", where=given.program.hf, hint=hint)
    found = dry_program(
        given.program.command(), name=given.name, world=given.gpus, device=given.device, settings=given.settings
    )
    peak = found.fullest.peak_allocated_bytes
    if given.limit.bytes and peak > given.limit.bytes:
        problem = f"the plan does not fit: a rank needs {format_bytes(peak)} of {format_bytes(given.limit.bytes)}"
        hint = "use more --gpus with --zero 3, --recompute full, smaller --inputs"
        raise UsageError(problem, where=given.name, hint=hint)
    job = found.job.replace(provenance={**found.job.provenance, "tool": "etude generate"})
    found = replace(found, job=job, assumptions=(*given.assumptions, *found.assumptions))
    return DrivenJob(found, given.name), write_job(job, given.files)


def driven_figures(made: DrivenJob) -> dict[str, Any]:
    """The numbers of the job for a reader."""
    numbers, memory = made.summary(), made.found.fullest
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in memory.by_class.items())
    sent = ", ".join(f"{name} {format_bytes(size)}" for name, size in numbers["comm_bytes_by_type"].items())
    return {
        "model": f"{made.name}, run in PyTorch without numbers",
        "ranks": f"{numbers['ranks']:,}, {counted(numbers['distinct_traces'], 'distinct program')}",
        "nodes": f"{numbers['nodes']:,}",
        "operations": format_count(numbers["flops"]),
        "communication": sent or "none",
        "peak memory": f"{format_bytes(memory.peak_allocated_bytes)} ({parts}); "
        f"{format_bytes(memory.peak_reserved_bytes)} in segments of the allocator, "
        f"{format_bytes(memory.device_bytes)} of the device",
    }
