from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.surface.cli.app import RUN, app
from etude.surface.cli.edits_given import WhatIfEdits, edits_of, mean, side_by_side
from etude.surface.cli.ops_flags import OpsBackend, OpsFile, ops_options
from etude.surface.cli.output import AsJson, emit, progress, say
from etude.surface.cli.plan_flags import ModelName, given_of, mapped_figures, model_of, plan_of, with_plan
from etude.surface.cli.sections import Mix, SectionsFile, opened, refuse_mix
from etude.surface.cli.sections import predicted as predicted_sections
from etude.surface.cli.serving import Asked, Draft, Requests, Serve, predicted, refuse, with_serving
from etude.surface.cli.simulation import options_given, with_simulation

if TYPE_CHECKING:
    from etude.make.transform.edits import Edit
    from etude.steps import Prediction
    from etude.steps.what_if import WhatIf

EXAMPLE = """The time of a training step, or of serving: generate and simulate in one command

[bold]Example[/bold]

  etude predict llama3-8b --gpus 64 --zero 3 --system dgx-h100
  etude predict llama3-70b --gpus 512 --tp 4 --pp 4 --global-batch 1024 --stack nemo --system dgx-h100
  etude predict llama3-8b --gpus 64 --zero 3 --system dgx-h100 --edit "compress group=dp ratio=1.35 when=pays"
  etude predict --rows measured.csv
  etude predict --sections distill.yaml --gpus 64 --system dgx-h100
  etude predict qwen3-8b --serve --tp 2 --prefill 4096 --decode 256 --batch 32 --system dgx-h100

With `--stack` the stack's recipe fills in what the plan leaves open, and the output lists these values. Without,
the plan is as given, and kernels are as efficient as those of the default stack; `--stack none` takes the
device as it is in the catalogue.
"""


@app.command(rich_help_panel=RUN, help=EXAMPLE)
@with_serving
@with_plan
@with_simulation
def predict(
    flags: dict[str, Any],
    serving: dict[str, Any],
    simulation: dict[str, Any],
    model: ModelName = "",
    hf: Annotated[Path | None, typer.Option(help="A Hugging Face `config.json` instead of a model's name.")] = None,
    plan: Annotated[Path | None, typer.Option(help="YAML file with the plan; flags override it.")] = None,
    system: Annotated[
        str, typer.Option("--system", "-s", help="Simulate there: a name of `etude systems`, or a file.")
    ] = "",
    stack: Annotated[str, typer.Option(help="Software stack: a name that `etude stacks` lists, or a YAML file.")] = "",
    rows: Annotated[Path | None, typer.Option(help="CSV file of measured steps: predict each of its rows.")] = None,
    ops: OpsFile = None,
    backend: OpsBackend = "",
    edit: WhatIfEdits = None,
    seeds: Annotated[int, typer.Option(min=1, help="Simulate with this many seeds of the jitter and show means.")] = 1,
    memory_check: Annotated[bool, typer.Option(help="Refuse plans that do not fit the memory of the device.")] = True,
    energy: Annotated[
        bool, typer.Option("--energy", help="Also show power and energy; `etude energy` shows more.")
    ] = False,
    serve: Serve = False,
    requests: Requests = None,
    draft: Draft = "",
    sections: SectionsFile = None,
    mix: Mix = "",
    json: AsJson = False,
) -> int:
    if ops is not None and (rows is not None or sections is not None):
        raise UsageError("--ops applies only to one model's step, or to serving", hint="leave out --rows or --sections")
    if energy and (rows is not None or sections is not None or serve or edit or seeds > 1):
        raise UsageError("--energy applies only to one model's training steps", hint="use `etude energy` for others")
    served = simulation.keys() & {"kernel", "units"} if serve else set[str]()
    apart = [f"--{name.replace('_', '-')}" for name in simulation if name not in served] + ["--seeds"] * (seeds > 1)
    apart += ["--edit"] * (bool(edit) and sections is None)
    if apart and (rows is not None or sections is not None or serve):
        raise UsageError(f"{apart[0]} applies only to one model's training steps", hint="leave it out")
    if rows is not None:
        return _rows(rows, stack, json=json)
    if not system:
        raise UsageError("no system is given", hint="--system dgx-h100; `etude systems` lists them")
    if sections is not None:
        given, gpus = opened(sections, mix, flags, [model, hf, plan, serve])
        predicted_sections(given, gpus, system, stack, edits_of(edit), check=memory_check, json=json)
        return 0
    refuse_mix(mix)
    if not model and hf is None:
        raise UsageError("no model is given", hint="etude predict llama3-8b --system dgx-h100")
    if serve:
        if stack:
            raise UsageError("--stack applies only to training steps", hint="leave it out with --serve")
        asked = Asked(model, hf, flags, serving, plan, requests, draft, system, memory="", name="")
        options = options_given(simulation) | ops_options(ops, backend)
        emit(predicted(asked, check=memory_check, json=json, **options), json=json)
        return 0
    seed = serving.pop("seed", 0)  # of the jitter; of the requests with --serve
    refuse(serving, requests, draft)
    edits = edits_of(edit)
    options = options_given(simulation) | {"seed": seed} | ops_options(ops, backend)
    frees = any(one.name == "offload" for one in edits)  # the edited step is what has to fit
    found = _step(model, hf, flags, plan, system, stack, check=memory_check and not frees, **options)
    told = [*found.assumed, *found.simulated.notes]
    if not edits and seeds == 1:
        emit((found.summary() if json else _shown(found)) | (_energy(found, options) if energy else {}), json=json)
    else:
        from etude.steps.what_if import findings

        pairs = _pairs(found, edits, options, seeds, check=memory_check)
        emit(_record(pairs, bool(edits)) if json else side_by_side(pairs, bool(edits)), json=json)
        told += [*pairs[0].edits.notes, *findings(pairs)]
    for note in dict.fromkeys(told):
        say(f"note: {note}")
    return 0


def _pairs(
    found: "Prediction", edits: "list[Edit]", options: dict[str, Any], seeds: int, *, check: bool
) -> "list[WhatIf]":
    """The baseline and the edited job for each seed, both with the same random draws."""
    from etude.steps.what_if import simulated_again, what_if

    first = options.get("seed", 0)
    pairs = []
    for seed in range(first, first + seeds):
        mine = {**options, "seed": seed}
        baseline = found if seed == first else simulated_again(found, **mine)
        pairs.append(what_if(baseline, edits, check=check, **mine))
    return pairs


def _record(pairs: "list[WhatIf]", edits: bool) -> dict[str, Any]:
    from etude.steps.what_if import findings

    record = pairs[0].summary() | {"findings": findings(pairs)}
    if len(pairs) > 1:
        steps = [(pair.baseline.step_time_ns, pair.edited.step_time_ns) for pair in pairs]
        record["seeds"] = [{"baseline_ns": a, "edited_ns": b} for a, b in steps]
        record["mean_step_time_ns"] = {"baseline": mean([a for a, _ in steps]), "edited": mean([b for _, b in steps])}
    return (
        record
        if edits
        else {key: value for key, value in record.items() if key not in ("edited", "speedup", "edits", "findings")}
    )


def _step(
    model: str,
    hf: Path | None,
    flags: dict[str, Any],
    plan: Path | None,
    system: str,
    stack: str,
    *,
    check: bool,
    **options: Any,
) -> "Prediction":
    from etude.cost.stacks import open_stack
    from etude.machine import open_system
    from etude.steps import predict as run
    from etude.steps.measured import Said, completed

    network, machine, software = model_of(model, hf), open_system(system), open_stack(stack or "default")
    if stack in ("", "none"):
        return run(network, plan_of(flags, plan, model), machine, stack=software, check=check, **options)
    wanted, assumed = completed(Said(model=network, given=given_of(flags, plan, model), system=machine), software)
    found = run(network, wanted, machine, stack=software, check=check, **options)
    return replace(found, assumed=(*assumed, *found.assumed))


def _shown(found: "Prediction") -> dict[str, Any]:
    """The most important figures, formatted."""
    from etude.base.units import format_bytes, format_time

    band = found.summary().get("error_band")
    error = {"expected error": _error(band)} if band else {}
    return {
        "step": format_time(found.step_time_ns),
        "tokens/s per GPU": round(found.tokens_per_s_per_gpu, 1),
        "model FLOP/s utilisation": f"{found.mfu:.1%}",
        "peak memory": format_bytes(found.generated.memory_peak_bytes),
        "stack": found.stack.name if found.stack else "none",
        **error,
        **_of_pipeline(found),
        **_of_lengths(found),
        **mapped_figures(found.generated),
    }


def _error(band: dict[str, Any]) -> str:
    if band["p50"] is None:
        return f"not known: {band['from']}"
    return f"{band['p50']:.0%}, 9 of 10 below {band['p90']:.0%} (from {band['from']})"


def _energy(found: "Prediction", options: dict[str, Any]) -> dict[str, Any]:
    """Power in W, and energy in J for each step and token."""
    from etude.analyse.energy import energy
    from etude.cost.choice import Menu

    menu = Menu.of(options.get("kernels", ()), options.get("units", ""))
    taken = energy(found.simulated, device=found.system.device, end_ns=found.time_ns, menu=menu).curve
    joules = taken.energy_j
    return {
        "mean_w": taken.mean_w,
        "peak_w": taken.peak_w,
        "per_step_j": joules / found.generated.plan.steps,
        "per_token_j": joules / found.generated.tokens if found.generated.tokens else None,
    }


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
            "micro-batches in flight": f"{figures['in_flight']}, {figures['in_flight_on_a_rank']} on one rank",
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
        "fullest rank relative to the mean": f"+{figures['imbalance']:.1%}",
    }


def _rows(path: Path, stack: str, *, json: bool) -> int:
    """Prints each training row of a file, measured and predicted. Returns the exit code."""
    from etude.cost.stacks import open_stack
    from etude.steps.measured import predict_rows, read_rows

    given = read_rows(path)
    with progress("predicting rows", len(given)) as advance:
        found = predict_rows(given, open_stack(stack) if stack else None, advance=advance)
    if json:
        emit({"rows": found}, json=True)
    else:
        emit([_row(record) for record in found])
    errors = [abs(r["predicted"]["step"] / r["measured"]["step"] - 1) for r in found if "predicted" in r]
    if errors:
        import numpy as np

        half, most = np.percentile(errors, [50, 90])
        say(f"{len(errors)} rows predicted, {len(found) - len(errors)} rejected, {len(given) - len(found)} not "
            "training;"
            f" error {half:.1%} at the median, {most:.1%} at the 90th percentile")  # fmt: skip
    return 0


def _row(record: dict[str, Any]) -> dict[str, Any]:
    if "refused" in record:
        return {
            "row": record["row"],
            "stack": None,
            "measured s": None,
            "predicted s": None,
            "error": record["refused"],
        }
    measured, time_s = record["measured"]["step"], record["predicted"]["step"]
    return {
        "row": record["row"],
        "stack": record["stack"],
        "measured s": round(measured, 3),
        "predicted s": round(time_s, 3),
        "error": f"{time_s / measured - 1:+.1%}",
    }
