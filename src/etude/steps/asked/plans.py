"""Flags of a plan: one for each field of `Plan`, made from the fields themselves, and `--plan FILE` beneath them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, read_mapping
from etude.base.parameters import given_in, naming, only_one, request_of, spelled
from etude.base.talk import say
from etude.make.generate import Plan

if TYPE_CHECKING:
    from etude.make.generate import Generated
    from etude.make.generate.model import Model

MODEL_HELP = "a model of the catalogue, a Hugging Face id, a YAML file, or a `config.json`"
PANEL = "The plan"


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """The parameter of what is about one model."""

    model: str = argument("noun", MODEL_HELP, "", of=str, like="gpt2")


@dataclass(frozen=True, kw_only=True)
class ModelOrConfig(ModelInput):
    """The parameters of a model: its name, or its `config.json`."""

    hf: str | None = figure(
        "path", "a Hugging Face `config.json`, or its folder, instead of a model's name", None, panel="Input"
    )


def model_asked(asked: ModelOrConfig) -> tuple["Model", str]:
    """The model, and the name or file that it was opened from."""
    if not only_one(asked, "model", "hf"):
        raise UsageError(
            "no model is given", hint=f"etude {request_of(asked).verb} llama3-8b; or a Hugging Face id, or a file"
        )
    hf = None if asked.hf is None else Path(asked.hf)
    return model_of(asked.model, hf), asked.model or str(hf / "config.json" if hf and hf.is_dir() else hf)


@dataclass(frozen=True, kw_only=True)
class PlanInput:
    """Parameters of a plan: those of a file, and the axes as flags over it."""

    plan: str | None = figure(
        "path", "YAML file with the plan; flags override it", None, like="plan.yaml", panel="Input"
    )
    axes: Plan = part(Plan, PANEL, later=True)


def plan_keys(asked: "PlanInput", model: str = "") -> dict[str, Any]:
    """What the file and the flags of a plan say, by key. All axes that were given count as read. Where they say no
    precision, the last word of a model's id may."""
    from etude.make.generate.model import stored_as

    given: dict[str, Any] = {} if asked.plan is None else read_mapping(asked.plan)
    given |= given_in(asked.axes)
    if "precision" not in given and (stored := stored_as(model)):
        given["precision"] = stored
        say(f"note: precision {stored}, as the model id says; --precision overrides it")
    return given


def plan_asked(asked: Any, model: "Model", name: str, **usual: Any) -> Plan:
    """The plan of a file with the axes that were given over it, and these where neither says."""
    keys = {**usual, **plan_keys(asked, name)}
    with naming(asked, "plan", *given_in(asked.axes)):
        plan = Plan.from_dict(keys, str(asked.plan or "plan"))
    check_axes(asked, plan, model)
    return plan


def check_axes(asked: Any, plan: Plan, model: "Model") -> None:
    """Refuses axes that were given and that nothing reads in this plan of this model."""
    plan.refuse_unread(given_in(asked.axes), model, lambda name: spelled(asked, name))


def mapped_figures(found: "Generated") -> dict[str, str]:
    """With `--cp-map`, what it comes to."""
    if found.mapped is None:
        return {}
    part, more = found.mapped.part_moved, found.mapped.imbalance
    return {"context map": f"{part:.1%} of the keys that a ring sends, fullest rank {more:.1%} over the mean"}


def model_of(name: str, hf: Path | None = None) -> "Model":
    from etude.make.generate.model import open_model

    found = open_model(name if hf is None else hf / "config.json" if hf.is_dir() else hf)
    if found.assumed:
        say(f"note: assumed {found.assumed}")
    return found


def memory_limit(text: str | int) -> int:
    """Bytes of `80GB`, or of the memory of a device, by its name or that of a system; 0 where nothing is given."""
    from etude.base.units import parse_bytes
    from etude.machine import device_names, open_system, system_names

    if isinstance(text, int):
        return text
    if text in (*system_names(), *device_names()) or (text and Path(text).is_file()):
        return open_system(text).device.memory_bytes
    return parse_bytes(text) if text else 0
