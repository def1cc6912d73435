"""Flags of a plan: one for each field of `Plan`, made from the fields themselves, and `--plan FILE` beneath them."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.errors import UsageError
from etude.generate.plan import Plan
from etude.model.reading import key_of

if TYPE_CHECKING:
    from etude.generate.model import Model

ModelName = Annotated[
    str, typer.Argument(help="A model of the catalogue, a YAML file, or a Hugging Face `config.json`.")
]
PANEL = "The plan"


def with_plan(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with a flag for each field of a plan; it gets those that were given as `flags`."""

    def run(**given: Any) -> Any:
        flags = {name.removeprefix("plan_"): given.pop(name) for name in list(given) if name in _FLAGS}
        return command(flags={k: v for k, v in flags.items() if v is not None}, **given)

    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "flags"]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + list(_FLAGS.values())
    run.__name__, run.__module__ = command.__name__, command.__module__
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _parameter(f: Any) -> inspect.Parameter:
    kind, of, key = f.metadata["kind"], f.metadata["of"], key_of(f)
    types: dict[str, Any] = {"count": int, "flag": bool, "number": float}
    base: Any = of if kind == "choice" else types.get(kind, str)
    name = "--" + key.replace("_", "-")
    names = [f"{name}/--no-{key.replace('_', '-')}"] if kind == "flag" else [name]
    usual = "" if f.default in (MISSING, None) or f.default_factory is not MISSING else f.default
    shown = f" [default: {'on' if usual is True else 'off' if usual is False else usual}]" if usual != "" else ""
    text = f.metadata["doc"] + ("; `4,5,4`" if kind == "list" else "") + shown.replace("[", r"\[")
    option = typer.Option(*names, help=text[0].upper() + text[1:], rich_help_panel=PANEL, show_default=False)
    return inspect.Parameter(
        f"plan_{f.name}", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[base | None, option]
    )


_FLAGS = {f"plan_{f.name}": _parameter(f) for f in fields(Plan)}


def plan_of(flags: dict[str, Any], path: Path | None) -> Plan:
    """The plan of a file with these flags over it."""
    given: dict[str, Any] = {}
    if path is not None:
        from etude.generate.model import parsed

        given = parsed(path)
    keys = {f.name: key_of(f) for f in fields(Plan)}
    for name, value in flags.items():
        given[keys[name]] = _numbers(name, value) if name == "stages" else value
    return Plan.from_dict(given, str(path or "plan"))


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--{name}: `{text}` is not a list of numbers", hint="4,5,4") from None


def model_of(name: str, hf: Path | None = None) -> "Model":
    from etude.generate.model import model

    return model(hf or name)
