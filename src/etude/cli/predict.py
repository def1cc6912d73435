from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.cli.app import RUN, app
from etude.cli.output import AsJson, emit, say
from etude.cli.plan_flags import ModelName, mapped_figures, model_of, plan_of, with_plan
from etude.cli.sections import Mix, SectionsFile, opened, refuse_mix
from etude.cli.sections import predicted as predicted_sections
from etude.cli.serving import Asked, Draft, Requests, Serve, predicted, refuse, with_serving

if TYPE_CHECKING:
    from etude.predict import Prediction

EXAMPLE = """How long a training step takes, or serving: generate and simulate in one

[bold]Example[/bold]

  etude predict llama3-8b --gpus 64 --zero 3 --micro-batch 2 --system dgx-h100
  etude predict --sections distill.yaml --gpus 64 --system dgx-h100
  etude predict qwen3-8b --serve --tp 2 --prefill 4096 --decode 256 --batch 32 --system dgx-h100
"""


@app.command(rich_help_panel=RUN, help=EXAMPLE)
@with_serving
@with_plan
def predict(
    flags: dict[str, Any],
    serving: dict[str, Any],
    model: ModelName = "",
    hf: Annotated[Path | None, typer.Option(help="A Hugging Face `config.json` instead of a model's name.")] = None,
    plan: Annotated[Path | None, typer.Option(help="YAML with the plan; flags go over it.")] = None,
    system: Annotated[str, typer.Option("--system", "-s", help="Name in the catalogue, or a YAML file.")] = "",
    memory_check: Annotated[bool, typer.Option(help="Refuse what does not fit the device.")] = True,
    serve: Serve = False,
    requests: Requests = None,
    draft: Draft = "",
    sections: SectionsFile = None,
    mix: Mix = "",
    json: AsJson = False,
) -> int:
    from etude.errors import UsageError
    from etude.machine import open_system
    from etude.predict import predict as run
    from etude.units import format_bytes, format_time

    if not system:
        raise UsageError("no system is given", hint="--system dgx-h100; `etude systems` lists them")
    if sections is not None:
        predicted_sections(
            *opened(sections, mix, flags, [model, hf, plan, serve]), system, check=memory_check, json=json
        )
        return 0
    refuse_mix(mix)
    if not model and hf is None:
        raise UsageError("no model is given", hint="etude predict llama3-8b --system dgx-h100")
    if serve:
        asked = Asked(model, hf, flags, serving, plan, requests, draft, system, memory="", name="")
        emit(predicted(asked, check=memory_check, json=json), json=json)
        return 0
    refuse(serving, requests, draft)
    found = run(model_of(model, hf), plan_of(flags, plan), open_system(system), check=memory_check)
    if json:
        emit(found.summary(), json=True)
    else:
        emit(
            {
                "step": format_time(found.step_time_ns),
                "tokens/s on a GPU": round(found.tokens_per_s_per_gpu, 1),
                "model FLOP/s utilisation": f"{found.mfu:.1%}",
                "memory at most": format_bytes(found.generated.memory_peak_bytes),
            }
            | _of_pipeline(found)
            | _of_lengths(found)
            | mapped_figures(found.generated)
        )
    for note in found.simulated.notes:
        say(f"note: {note}")
    return 0


def _of_pipeline(found: "Prediction") -> dict[str, Any]:
    figures = found.generated.pipeline()
    if not figures:
        return {}
    cuts = figures.get("stages")
    shown = {"stages": f"{cuts['forward']} forward, {cuts['backward']} backward"} if cuts else {}
    stale = {"updates between forward and backward": figures["staleness"]} if figures["staleness"] else {}
    return (
        {
            "bubble of the schedule": f"{figures['bubble']:.1%}",
            "micro-batches in flight": f"{figures['in_flight']}, {figures['in_flight_on_a_rank']} on a rank",
        }
        | stale
        | shown
    )


def _of_lengths(found: "Prediction") -> dict[str, Any]:
    figures = found.of_lengths()
    if not figures:
        return {}
    left = f", {figures['samples_left']:,} left over" if figures["samples_left"] else ""
    return {
        "samples/s": round(figures["samples_per_s"], 2),
        "samples": f"{figures['samples']:,} in {figures['steps']} steps{left}",
        "padding": f"{figures['padding']:.1%}",
        "fullest rank over the mean": f"+{figures['imbalance']:.1%}",
    }
