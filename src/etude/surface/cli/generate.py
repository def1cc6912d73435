from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.surface.api.making import memory_limit
from etude.surface.cli.app import MAKE, app
from etude.surface.cli.job_out import Dialect, Files, Force, Format, In, NoWrite, Out, To, write_job
from etude.surface.cli.output import AsJson, emit, say
from etude.surface.cli.plan_flags import ModelName, mapped_figures, model_of, plan_of, with_plan
from etude.surface.cli.sections import Mix, SectionsFile, opened, refuse_mix
from etude.surface.cli.sections import generated as generated_sections
from etude.surface.cli.serving import Asked, Draft, Requests, Serve, refuse, served, shown, with_serving

if TYPE_CHECKING:
    from etude.make.generate import Generated
    from etude.make.generate.serving import ServedJob

EXAMPLE = """The job of one training step, or of serving, from a model and a plan

[bold]Example[/bold]

  etude generate llama3-70b --gpus 512 --tp 8 --pp 4 --cp 2 --schedule interleaved:4
      --global-batch 512 --recompute selective --zero 1 -o job/
  etude generate --sections distill.yaml --gpus 64 -o job/
  etude generate qwen3-8b --serve --prefill 4096 --decode 256 --batch 32 --tp 2 -o job/
  etude simulate job/ --system dgx-h100

The job is written folded, as a Parquet folder; `--to et` writes a Chakra file for each rank, and
`--to et --dialect astra` files that ASTRA-sim can run, as `etude convert` does.
Numbers are sums over ranks: flops of all nodes, input bytes of communication (an all-gather's are what a rank
contributes, a message counts once, at its sender); memory is that of the fullest rank.
"""


@app.command(rich_help_panel=MAKE, help=EXAMPLE)
@with_serving
@with_plan
def generate(
    flags: dict[str, Any],
    serving: dict[str, Any],
    model: ModelName = "",
    hf: Annotated[
        Path | None, typer.Option(help="A Hugging Face `config.json`, or its folder, instead of a model's name.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="YAML file with the plan; flags override it.")] = None,
    out: Out = None,
    to: Format = To.PARQUET,
    dialect: In = Dialect.PLAIN,
    name: Annotated[str, typer.Option(help="Name of the job; default: the model's.")] = "",
    system: Annotated[
        str,
        typer.Option("--system", "-s", help="Simulate passes there; with --requests, requests wait until passes end."),
    ] = "",
    memory: Annotated[
        str,
        typer.Option(
            help="Refuse plans that need more memory: `80GB`, or a system whose device memory counts: `dgx-h100`."
        ),
    ] = "",
    memory_out: Annotated[
        Path | None, typer.Option(help="Write memory over time: `.csv` or `.parquet`.", dir_okay=False)
    ] = None,
    serve: Serve = False,
    requests: Requests = None,
    draft: Draft = "",
    sections: SectionsFile = None,
    mix: Mix = "",
    no_write: NoWrite = False,
    force: Force = False,
    json: AsJson = False,
) -> int:
    from etude import __version__
    from etude.base.errors import UsageError
    from etude.make.generate import card_of
    from etude.make.generate import generate as make
    from etude.make.generate.model import model_names
    from etude.steps import check_memory

    files = Files(out=out, to=to, dialect=dialect, force=force, no_write=no_write)
    if sections is not None:
        given, gpus = opened(sections, mix, flags, [model, hf, plan, serve, memory_out])
        generated_sections(given, gpus, name, files, _limit(system, memory), json=json)
        return 0
    refuse_mix(mix)
    if not model and hf is None:
        raise UsageError("no model is given", hint=f"etude generate llama3-8b; known: {', '.join(model_names())}")
    by = f"etude {__version__}"
    if serve:
        answered = served(Asked(model, hf, flags, serving, plan, requests, draft, system, memory, name))
        _memory_over_time(answered, memory_out, force=force)
        limits = write_job(answered.job, files, card_of(answered, made_by=by))
        emit(answered.summary() | limits if json else shown(answered), json=json)
        return 0
    refuse(serving, requests, draft)
    if system:
        say("note: nothing is simulated: --system is taken as a limit of memory, which is --memory")
    found = make(model_of(model, hf), plan_of(flags, plan, model), name=name)
    if system:
        from etude.machine import open_system

        check_memory(found, open_system(system).device.memory_bytes, f"{found.model.name} on {system}")
    if memory:
        check_memory(found, memory_limit(memory), found.model.name)
    _memory_over_time(found, memory_out, force=force)
    limits = write_job(found.job, files, card_of(found, made_by=by))
    emit(found.summary() | limits if json else _shown(found), json=json)
    return 0


def _limit(system: str, memory: str) -> int:
    """The memory limit of a rank in bytes, from the flags; 0 if none is given."""
    from etude.machine import open_system

    limits = [open_system(system).device.memory_bytes] if system else []
    return min([*limits, *([memory_limit(memory)] if memory else [])], default=0)


def _memory_over_time(found: "Generated | ServedJob", path: Path | None, *, force: bool) -> None:
    if path is None:
        return
    from etude.base.files import writing
    from etude.make.generate import memory_table

    memory_table.check_name(path)
    with writing(path, force=force) as file:
        memory_table.write(memory_table.memory_over_time(found), file)


def _shown(found: "Generated") -> dict[str, Any]:
    from etude.base.units import format_bytes, format_count
    from etude.make.generate import by_group

    numbers = found.summary()
    worst = max(found.memory, key=lambda m: m.peak_bytes)
    moved = {
        label: ", ".join(f"{kind} {format_bytes(size)}" for kind, size in kinds.items())
        for label, kinds in by_group(found.job).items()
    }
    return {
        "model": f"{found.model.name}, {format_count(numbers['params'])} parameters",
        "ranks": f"{numbers['ranks']:,}, {numbers['distinct_traces']} distinct programs",
        "nodes": f"{numbers['nodes']:,}",
        "operations": format_count(numbers["flops"]),
        **{f"moved by {label}": told for label, told in moved.items()},
        **mapped_figures(found),
        "peak memory": f"{format_bytes(worst.peak_bytes)} (weights {format_bytes(worst.weights)}, gradients "
        f"{format_bytes(worst.gradients)}, optimizer {format_bytes(worst.optimizer)}, activations "
        f"{format_bytes(worst.moving_bytes)}; not all at the same time); {format_bytes(worst.reserved_bytes)} in "
        "segments of the allocator",
    }
