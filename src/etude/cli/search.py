from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.cli.app import RUN, app
from etude.cli.output import AsJson, emit, progress, say

if TYPE_CHECKING:
    from etude.search import Found

EXAMPLE = """The best of a space of designs: plans, placements, cuts, mixes; scored by simulation, with its frontier

[bold]Example[/bold]

  etude search space.yaml
  etude search space.yaml --set "axes={tp: [1, 2, 4, 8]}" -j 0 --json

A space is a YAML file: `search:` says what is chosen, the other keys say of what, `score` by what, and `limits` within
what. `docs/search.md` shows one of each kind. What was left out, and why, is told.
"""


@app.command(rich_help_panel=RUN, help=EXAMPLE)
def search(
    space: Annotated[Path, typer.Argument(help="YAML file with `search: KIND`.", show_default=False)],
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Key of the file with another value: `score=cost`; YAML.")
    ] = None,
    method: Annotated[str, typer.Option(help="all, dp, greedy, anneal, ilp; by itself what suits the space.")] = "",
    again: Annotated[str, typer.Option(help="Search again so often as links change: `every=10s`.")] = "",
    workers: Annotated[int, typer.Option("--workers", "-j", min=0, help="Processes; 0: as many as cores.")] = 1,
    ray: Annotated[str, typer.Option(help="`auto`, or the address of a Ray cluster.")] = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to keep what was found; a search goes on from there.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of methods that draw.")] = 0,
    top: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = 10,
    json: AsJson = False,
) -> int:
    from etude.search import Asked, read_space, solve

    asked = Asked(
        method=method, workers=workers, ray=ray, out=out, seed=seed, again_s=_again_s(again), progress=progress
    )  # fmt: skip
    _tell(solve(read_space(space, _changed(change or [])), asked), top, json)
    return 0


def _changed(texts: list[str]) -> dict[str, Any]:
    import yaml

    from etude.errors import UsageError

    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"`{text}` is not KEY=VALUE", where="--set", hint="--set score=cost")
        found[key.strip()] = yaml.safe_load(value)
    return found


def _again_s(text: str) -> float:
    from etude.units import parse_time

    return parse_time(text.removeprefix("every=")) / 1e9 if text else 0.0


def _tell(found: "Found", top: int, as_json: bool) -> None:
    for line in found.told:
        say(line)
    if as_json:
        emit(found.record(), json=True)
        return
    emit((found.rows or found.frontier)[:top])
    for note in found.notes:
        say(note)
    why = "".join(f", {count:,} {reason}" for reason, count in found.pruned.items())
    say(f"{found.space:,} candidates: {found.tried:,} tried{why}")
