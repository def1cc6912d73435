from pathlib import Path
from typing import Annotated, Any

import typer

from etude.surface.cli.app import RUN, app
from etude.surface.cli.output import AsJson, emit, progress, say
from etude.surface.cli.plan_flags import ModelName, given_of, with_plan

EXAMPLE = """The plans of a model that fit a cluster, ranked by simulated step time

[bold]Example[/bold]

  etude plan llama3-405b --gpus 16384 --global-batch 2048 --system dgx-h100
  etude plan llama3-70b --gpus 64 --global-batch 128 --system dgx-h100 --tp 8

Values given by flags are kept, the others are searched: `etude search MODEL` has more axes, scores and limits.
Without `--global-batch` a step has a sample for each
GPU, 16 Mi tokens at most.
"""
COLUMNS = ("step_time_ns", "tokens_per_s_per_gpu", "mfu", "memory_peak_bytes", "global_batch", "tp", "pp", "cp", "dp",
           "ep", "zero", "schedule", "micro_batch", "recompute")  # fmt: skip


@app.command(rich_help_panel=RUN, help=EXAMPLE)
@with_plan
def plan(
    flags: dict[str, Any],
    model: ModelName = "",
    hf: Annotated[Path | None, typer.Option(help="A Hugging Face `config.json` instead of a model's name.")] = None,
    plan: Annotated[Path | None, typer.Option(help="YAML file with fixed values; flags override it.")] = None,
    system: Annotated[
        str, typer.Option("--system", "-s", help="Simulate there: a name of `etude systems`, or a file.")
    ] = "",
    stack: Annotated[
        str, typer.Option(help="Software stack whose efficiency is used; `etude stacks` lists them.")
    ] = "default",
    tries: Annotated[int, typer.Option(min=1, help="Number of plans to simulate, the most promising first.")] = 24,
    json: AsJson = False,
) -> int:
    from etude.base.errors import UsageError
    from etude.base.units import format_bytes, format_time
    from etude.decide.search import Asked
    from etude.decide.search.plans import NARROW, solved, space_of

    if not system:
        raise UsageError("no system is given", hint="--system dgx-h100; `etude systems` lists them")
    if not model and hf is None:
        raise UsageError("no model is given", hint="etude plan llama3-70b --gpus 64 --system dgx-h100")
    given = given_of(flags, plan, model)
    name = str(hf / "config.json" if hf.is_dir() else hf) if hf is not None else model
    axes = {name: values for name, values in NARROW.items() if name not in given}
    space = space_of(model=name, system=system, fixed=given, over=axes, stack=stack, tries=tries, recipe=False)
    found = solved(space, Asked(progress=progress))
    rows = [{key: row[key] for key in COLUMNS} for row in found.rows]
    rows = [row | {"tokens_per_s_per_gpu": round(row["tokens_per_s_per_gpu"], 1), "mfu": round(row["mfu"], 4)}
            for row in rows]  # fmt: skip
    samples = rows[0]["global_batch"]
    if not json:
        for row in rows:
            row["step"] = format_time(row.pop("step_time_ns"))
            row["memory"] = format_bytes(row.pop("memory_peak_bytes"))
            del row["global_batch"]
        rows = [{"step": row.pop("step"), "memory": row.pop("memory"), **row} for row in rows]
    emit(rows, json=json)
    say(f"{len(rows)} plans simulated, the best first; a step has {samples:,} samples")
    return 0
