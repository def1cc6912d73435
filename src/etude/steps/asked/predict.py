"""What is asked of a predicted training step."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import figure, part, switch
from etude.base.outputs import Printed
from etude.base.parameters import given_in, spelled
from etude.base.talk import say
from etude.run.simulate.settings import SimulationSettings
from etude.steps.asked.edits import EditInput, edits_of, side_by_side
from etude.steps.asked.plans import ModelOrConfig, PlanInput, mapped_figures, model_asked, plan_asked, plan_keys
from etude.steps.asked.simulation import PANEL, Checked, OnSystem, OpsInput, SimulationOptions, options_of

if TYPE_CHECKING:
    from etude.cost.stacks import Stack
    from etude.machine.system import System
    from etude.make.generate import Plan
    from etude.make.generate.model import Model
    from etude.make.transform.edits import Edit
    from etude.steps.step import Prediction
    from etude.steps.what_if import WhatIf


@dataclass(frozen=True, kw_only=True)
class Predict(ModelOrConfig, PlanInput, OnSystem, OpsInput, Checked, EditInput):
    """The time of a training step, or of serving: generate and simulate in one command

    etude predict llama3-8b --gpus 64 --zero 3 --system dgx-h100
    etude predict llama3-70b --gpus 512 --tp 4 --pp 4 --global-batch 1024 --stack nemo --system dgx-h100
    etude predict llama3-8b --gpus 64 --zero 3 --system dgx-h100 --edit "compress group=dp ratio=1.35 when=pays"
    etude predict qwen3-30b-a3b --gpus 64 --ep 16 --zero 1 --global-batch 256 --network flow --system dgx-h100
    etude predict llama3-8b --gpus 16 --cp 2 --seq 8192 --zero 1 --jitter step=0.1 --seeds 3 --system dgx-h100
    etude predict llama3-8b --gpus 8 --zero 3 --lengths 512:0.6,2048:0.4 --system dgx-h100 --energy
    etude predict --hf config.json --gpus 16 --host 5us --system dgx-h100
    etude predict serve qwen3-8b --tp 2 --prefill 4096 --decode 256 --batch 32 --system dgx-h100
    etude predict sections distill.yaml --gpus 64 --system dgx-h100
    etude predict rows measured.csv

    With `--stack` the stack's recipe fills in what the plan leaves open, and the output lists these values. Without,
    the plan is as given, and kernels are as efficient as those of the default stack; `--stack none` takes the
    device as it is in the catalogue."""

    stack: str = figure(
        "noun",
        "software stack: a name that `etude stacks` lists, or a YAML file",
        "",
        of=str,
        like="nemo",
        panel="Machine",
    )
    settings: SimulationSettings = part(
        SimulationSettings, PANEL, but=("collective_times", "concurrent_network", "remote_memory", "fold")
    )
    seeds: int = figure(
        "count", "simulate with this many seeds of the jitter and show means", 1, needs="jitter", panel=PANEL
    )
    energy: bool = switch("also show power and energy; `etude energy` shows more", panel="Output")
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictInputs:
    model: "Model"
    plan: "Plan | dict[str, Any]"
    """A plan; with a stack its keys, which the stack's recipe completes."""
    axes: tuple[str, ...]
    system: "System"
    stack: "Stack"
    options: SimulationOptions
    edits: "tuple[Edit, ...]"
    seeds: int
    check: bool
    energy: bool


def predict_inputs(asked: Predict) -> PredictInputs:
    from etude.cost.stacks import open_stack
    from etude.machine import open_system

    (model, said), system = model_asked(asked), open_system(asked.system)
    is_whole = asked.stack in ("", "none")
    edits, seeds = tuple(edits_of(asked.edit)), asked.seeds
    if asked.energy and (edits or seeds > 1):
        names = [spelled(asked, name) for name in ("energy", "edit", "seeds")]
        raise UsageError(f"{names[0]} is of one run, without {names[1]} and {names[2]}", hint="leave it out")
    return PredictInputs(
        model=model, plan=plan_asked(asked, model, said) if is_whole else plan_keys(asked, said),
        axes=tuple(given_in(asked.axes)), system=system, stack=open_stack(asked.stack or "default"),
        options=options_of(asked, system), edits=edits, seeds=seeds, check=asked.memory_check, energy=asked.energy,
    )  # fmt: skip


def _planned(given: PredictInputs) -> "tuple[Plan, tuple[str, ...]]":
    """The plan, and what the stack's recipe filled in."""
    from etude.steps.measured import RunFacts, completed

    if not isinstance(given.plan, dict):
        return given.plan, ()
    plan, assumed = completed(RunFacts(model=given.model, given=given.plan, system=given.system), given.stack)
    plan.refuse_unread(given.axes, given.model)
    return plan, tuple(assumed)


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """A step; what became of it with edits, or with several seeds; its power and energy."""

    found: "Prediction"
    pairs: "tuple[WhatIf, ...]"
    edited: bool
    energy: dict[str, Any]


def predicted(given: PredictInputs) -> PredictedStep:
    from etude.steps.estimates import open_settings
    from etude.steps.step import predict
    from etude.steps.what_if import findings, over_seeds

    (plan, assumed), options = _planned(given), given.options.by_name()
    frees = any(one.name == "offload" for one in given.edits)  # the edited step is what has to fit
    found = predict(given.model, plan, given.system, stack=given.stack, check=given.check and not frees, **options)
    unstated = open_settings(given.plan) if isinstance(given.plan, dict) else 0
    found = replace(found, assumed=(*assumed, *found.assumed), unstated=unstated)
    told, pairs = [*found.assumed, *found.simulated.notes], tuple["WhatIf", ...]()
    if given.edits or given.seeds > 1:
        pairs = tuple(over_seeds(found, list(given.edits), given.seeds, check=given.check, **options))
        told += [*pairs[0].edits.notes, *findings(pairs)]
    for note in dict.fromkeys(told):
        say(f"note: {note}")
    return PredictedStep(found, pairs, bool(given.edits), _energy(found, options) if given.energy else {})


def predict_record(result: PredictedStep) -> dict[str, Any]:
    from etude.steps.what_if import summary_of

    if not result.pairs:
        return result.found.summary() | _with_ranges(result)
    left_out = () if result.edited else ("edited", "speedup", "edits", "findings")
    return {key: value for key, value in summary_of(result.pairs).items() if key not in left_out}


def _with_ranges(result: PredictedStep) -> dict[str, Any]:
    """Power and energy, with the ranges of these and of the step."""
    from etude.cost.estimates import columns
    from etude.steps.estimates import TRAIN_STEP, energy_estimates

    if not result.energy:
        return {}
    found, energy = result.found, result.energy
    return energy | columns(found.estimates() | energy_estimates(energy, TRAIN_STEP, found.system.device.name))


def predict_figures(result: PredictedStep) -> Any:
    """The most important figures, formatted."""
    from etude.base.units import format_bytes, format_time

    found = result.found
    if result.pairs:
        return side_by_side(list(result.pairs), result.edited)
    figures = found.estimates()
    return {
        "step": figures["step_time_ns"].text(lambda ns: format_time(round(ns))),
        "tokens/s per GPU": figures["tokens_per_s_per_gpu"].text(lambda rate: f"{rate:.1f}"),
        "model FLOP/s utilisation": figures["mfu"].text(lambda share: f"{share:.1%}"),
        "peak memory": figures["memory_peak_bytes"].text(lambda size: format_bytes(round(size))),
        "stack": found.stack.name if found.stack else "none",
        "range": figures["step_time_ns"].about,
        **_of_pipeline(found),
        **_of_lengths(found),
        **mapped_figures(found.generated),
        **result.energy,
    }


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
    return {
        "bubble of the schedule": f"{figures['bubble']:.1%}",
        "micro-batches in flight": f"{figures['in_flight']}, {figures['in_flight_on_a_rank']} on one rank",
        **stale,
        **shown,
    }


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
