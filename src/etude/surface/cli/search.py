from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.surface.cli.app import RUN, app
from etude.surface.cli.output import AsJson, emit, progress, say
from etude.surface.cli.plan_flags import given_of, with_plan

if TYPE_CHECKING:
    from etude.decide.search import Asked, Found

EXAMPLE = """The best of a space of designs: plans, placements, cuts, mixes; scored by simulation, with its frontier

[bold]Example[/bold]

  etude search llama3-8b --gpus 16 --system dgx-h100
  etude search mixtral-8x7b --gpus 32 --system dgx-h100 --over tp,pp,ep,zero --score step,memory -o found/
  etude search llama3-8b --gpus 16 --system tpu-v6e-pod --over tp,zero,placement
  etude search llama3-8b --over "gpus=8|16|32,tp=1|2,zero" --system dgx-h100 --global-batch 32 --limit memory=60GB
  etude search space.yaml --set "axes={tp: [1, 2, 4, 8]}" -j 0 --json

A space is a YAML file: `search:` gives the kind of choice, `score` the objective, `limits` the constraints, and the
other keys describe what is chosen. `docs/search.md` shows one of each kind. With the name of a model instead, its
plans are searched: values given by flags are kept, `--over` names the axes. The result says which candidates were
left out, and why.
"""
FIGURES = ("dp", "step_time_ns", "tokens_per_s_per_gpu", "mfu", "memory_peak_bytes", "cost_usd", "energy_j")
"""Columns of a table of plans beside its axes."""
OF_MODELS = "A search over plans of a model"


@app.command(rich_help_panel=RUN, help=EXAMPLE)
@with_plan
def search(
    flags: dict[str, Any],
    space: Annotated[
        str,
        typer.Argument(help="YAML file with `search: KIND`, or a model whose plans are searched.", show_default=False),
    ] = "",
    over: Annotated[
        str,
        typer.Option(
            help="Axes, with given values or the usual ones: `tp=1|2|4,pp,zero`; fields of a plan, `gpus`, `system`, "
            "and `placement`, which places the ranks of the best three plans. "
            "Default: all axes that change speed or memory much.",
            rich_help_panel=OF_MODELS,
        ),
    ] = "",
    score: Annotated[
        str,
        typer.Option(
            help="step, tokens, mfu, memory, cost, energy; several give a frontier. \\[default: step]",
            rich_help_panel=OF_MODELS,
            show_default=False,
        ),
    ] = "",
    limit: Annotated[
        list[str] | None,
        typer.Option(
            help="Upper limit of a score (lower limit of tokens and mfu): `memory=80GB`. Default: the memory of the "
            "device.",
            rich_help_panel=OF_MODELS,
        ),
    ] = None,
    system: Annotated[
        str,
        typer.Option(
            "--system", "-s", help="Simulate there: a name of `etude systems`, or a file.", rich_help_panel=OF_MODELS
        ),
    ] = "",
    stack: Annotated[
        str,
        typer.Option(help="Software stack: a name that `etude stacks` lists, or a file.", rich_help_panel=OF_MODELS),
    ] = "",
    network: Annotated[
        str,
        typer.Option(
            help="analytic; or links or flow, if placement matters. Default: analytic; flow with `--over placement`.",
            rich_help_panel=OF_MODELS,
        ),
    ] = "",
    price: Annotated[
        list[str] | None,
        typer.Option(
            help="Price of a device in dollars per hour: `2.5`, or `dgx-h100=2.5`.", rich_help_panel=OF_MODELS
        ),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="YAML file with fixed values; flags override it.", rich_help_panel=OF_MODELS)
    ] = None,
    hf: Annotated[
        Path | None,
        typer.Option(help="A Hugging Face `config.json` instead of a model's name.", rich_help_panel=OF_MODELS),
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key of the file: `score=cost`; the value is YAML.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="all, dp, greedy, anneal, ilp, lp, joint; default: chosen by the kind of space.")
    ] = "",
    again: Annotated[str, typer.Option(help="Search again at intervals, as links change: `every=10s`.")] = "",
    workers: Annotated[int, typer.Option("--workers", "-j", min=0, help="Number of processes; 0: one per core.")] = 1,
    ray: Annotated[str, typer.Option(help="`auto`, or the address of a Ray cluster.")] = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the results; a later search continues from there.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random methods.")] = 0,
    top: Annotated[int, typer.Option(min=1, help="Number of rows of the table.")] = 10,
    trust: Annotated[
        bool, typer.Option("--trust", help="Let the file run programs and Python code, and write outside its folder.")
    ] = False,
    json: AsJson = False,
) -> int:
    from etude.decide.search import Asked, read_space, solve
    from etude.surface.executing import executed

    asked = Asked(
        method=method, workers=workers, ray=ray, out=out, seed=seed, again_s=_again_s(again), progress=progress,
        execute=executed, trust=trust,
    )  # fmt: skip
    model = {"--over": over, "--score": score, "--limit": limit, "--system": system, "--stack": stack, "--price": price,
             "--network": network, "--plan": plan, "--hf": hf}  # fmt: skip
    said = [*(name for name, value in model.items() if value), *(f"--{k.replace('_', '-')}" for k in flags)]
    if space.endswith((".yaml", ".yml")) and "--system" not in said and "--over" not in said:
        if said:
            raise UsageError(
                f"{said[0]} applies only to a search over plans of a model",
                hint="--set KEY=VALUE changes a file's keys",
            )
        found = solve(read_space(space, _changed(change or [])), asked)
    else:
        if change:
            raise UsageError("--set changes keys of a file", where="--set", hint="use flags for fixed values")
        found = _plans(space, hf, given_of(flags, plan, space), asked, over=over, score=score, limit=limit or [],
                       system=system, stack=stack, network=network, price=price or [])  # fmt: skip
    _tell(found, top, json, out)
    return 0


def _plans(
    model: str, hf: Path | None, fixed: dict[str, Any], asked: "Asked", *, over: str, score: str, limit: list[str],
    price: list[str], **more: Any,
) -> "Found":  # fmt: skip
    """Searches the plans of a model. Raises UsageError if no model is given."""
    from etude.decide.search import kept
    from etude.decide.search.plans import parse_over, solved, space_of

    if not model and hf is None:
        raise UsageError(
            "neither a model nor a space is given", hint="etude search llama3-8b --gpus 16 --system dgx-h100"
        )
    name = str(hf / "config.json" if hf.is_dir() else hf) if hf is not None else model
    scores = [one.strip() for one in score.split(",") if one.strip()]
    limits = dict(_pair(text, "--limit", "memory=80GB") for text in limit)
    space = space_of(
        model=name, fixed=fixed, over=parse_over(over), score=scores, limits=limits, price=_prices(price), **more
    )  # fmt: skip
    return kept(solved(space, asked), asked, f"Plans of {name}")


def _pair(text: str, where: str, hint: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key.strip() or not equals or not value.strip():
        raise UsageError(f"`{text}` is not KEY=VALUE", where=where, hint=f"{where} {hint}")
    return key.strip(), value.strip()


def _prices(texts: list[str]) -> Any:
    """One price for all systems, or a price for each system. Raises UsageError if one is not a number."""

    def number(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise UsageError(f"`{text}` is not a price", where="--price", hint="--price 2.5") from None

    if len(texts) == 1 and "=" not in texts[0]:
        return number(texts[0])
    return {name: number(value) for name, value in (_pair(t, "--price", "dgx-h100=2.5") for t in texts)}


def _changed(texts: list[str]) -> dict[str, Any]:
    import yaml

    pairs = (_pair(text, "--set", "score=cost") for text in texts)
    return {key: yaml.safe_load(value) for key, value in pairs}


def _again_s(text: str) -> float:
    from etude.base.units import parse_time

    return parse_time(text.removeprefix("every=")) / 1e9 if text else 0.0


def _tell(found: "Found", top: int, as_json: bool, out: Path | None) -> None:
    for line in found.told:
        say(line)
    if as_json:
        emit(found.record(), json=True)
        return
    rows = (found.rows or found.frontier)[:top]
    if "axes" in found.more:
        kept = [*found.more["scores"], *found.more["axes"]]
        kept = [*dict.fromkeys([*kept, *(name for name in FIGURES if name in rows[0])])]
        rows = [{name: row[name] for name in kept} for row in rows]
    emit([_shown(row) for row in rows])
    if flags := found.best.get("flags"):
        say(f"best: {flags}")
    for note in found.notes:
        say(note)
    why = "".join(f", {count:,} {reason}" for reason, count in found.pruned.items())
    say(f"{found.space:,} candidates: {found.tried:,} tried{why}")
    if out is not None:
        say(f"wrote {out / 'index.html'}")


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row with times and bytes formatted in their units, without `flags`."""
    from etude.base.units import format_bytes, format_time

    found: dict[str, Any] = {}
    for name, value in row.items():
        if name.endswith("_ns") and isinstance(value, int):
            found[name.removesuffix("_ns")] = format_time(value)
        elif name.endswith("_bytes") and isinstance(value, int):
            found[name.removesuffix("_bytes")] = format_bytes(value)
        elif name != "flags":
            found[name] = round(value, 4) if isinstance(value, float) else value
    return found
