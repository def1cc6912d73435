from pathlib import Path
from typing import Annotated, Any

import typer

from etude.cli.app import RUN, app
from etude.cli.output import AsJson, emit, progress, say
from etude.cli.plan_flags import ModelName, given_of, model_of, with_plan

EXAMPLE = """The plans of a model that fit a cluster, ranked by simulated step time

[bold]Example[/bold]

  etude plan llama3-405b --gpus 16384 --global-batch 2048 --system dgx-h100
  etude plan llama3-70b --gpus 64 --global-batch 128 --system dgx-h100 --tp 8

What a flag says is kept; the rest is searched. Without `--global-batch` a step has a sample for each
GPU, 16 Mi tokens at most.
"""


@app.command(rich_help_panel=RUN, help=EXAMPLE)
@with_plan
def plan(
    flags: dict[str, Any],
    model: ModelName = "",
    hf: Annotated[Path | None, typer.Option(help="A Hugging Face `config.json` instead of a model's name.")] = None,
    plan: Annotated[Path | None, typer.Option(help="YAML with what is fixed; flags go over it.")] = None,
    system: Annotated[str, typer.Option("--system", "-s", help="Name in the catalogue, or a YAML file.")] = "",
    stack: Annotated[
        str, typer.Option(help="Software whose efficiency counts: `etude stacks` lists them.")
    ] = "default",
    tries: Annotated[int, typer.Option(min=1, help="Plans that are simulated, the most promising first.")] = 24,
    json: AsJson = False,
) -> int:
    from etude.cost.stacks import open_stack
    from etude.errors import UsageError
    from etude.machine import open_system
    from etude.predict import search
    from etude.units import format_bytes, format_time

    if not system:
        raise UsageError("no system is given", hint="--system dgx-h100; `etude systems` lists them")
    if not model and hf is None:
        raise UsageError("no model is given", hint="etude plan llama3-70b --gpus 64 --system dgx-h100")
    given = given_of(flags, plan, model)
    gpus = int(given.pop("gpus", 1))
    with progress("simulating plans", tries) as advance:
        found = search(
            model_of(model, hf),
            gpus,
            open_system(system),
            tries=tries,
            advance=advance,
            stack=open_stack(stack),
            **given,
        )
    rows = [ranked.row() for ranked in found]
    if not json:
        for row in rows:
            row["step"] = format_time(row.pop("step_time_ns"))
            row["memory"] = format_bytes(row.pop("memory_peak_bytes"))
            del row["global_batch"]
        rows = [{"step": row.pop("step"), "memory": row.pop("memory"), **row} for row in rows]
    emit(rows, json=json)
    say(f"{len(rows)} plans simulated, the best first; a step has {found[0].plan.batch:,} samples")
    return 0
