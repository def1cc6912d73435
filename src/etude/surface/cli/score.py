from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.surface.cli.app import RUN, app
from etude.surface.cli.output import AsJson, emit, progress, say
from etude.surface.cli.plan_flags import with_fields
from etude.world.serve import Engine

if TYPE_CHECKING:
    from etude.decide.score import Scored

EXAMPLE = """How right is Etude about what you measured? Errors of every figure, and what was assumed

[bold]Example[/bold]

  etude score measured/published_train.csv
  etude score measured/ml_energy_llm.csv --first 20 --json
  etude score nccl_tests.txt --system dgx-h100
  etude score measured/vllm_runs/RTX4090/Llama-3.1-8B --ops measured/vllm_profiles/RTX4090/...
  etude score result.json --model llama3-8b --system dgx-h100 --max-num-seqs 128
  etude score measured/h200_extra/offload -o rows.csv

The kind of a file is known by its content: training steps, serving, images, runs of engines, requests of a
benchmark client, operators, collectives, energy, contention, offload, pairs of recordings. Each row is predicted as
`etude predict`, `serve`, `energy`, `ops` or `simulate` would. A median and a 90th percentile are of the absolute
error, the bias is the median of the signed one; all relative to what was measured.
"""
ENGINE = "The engine of measured requests"
SHOWN = 8
"""Assumptions and reasons that are printed."""


@app.command(rich_help_panel=RUN, help=EXAMPLE)
@with_fields(Engine, "engine", ENGINE)
def score(
    engine: dict[str, Any],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files or folders of measurements.")],
    kind: Annotated[str, typer.Option(help="Kind of the files, instead of what their content shows.")] = "",
    first: Annotated[int, typer.Option(min=0, help="Score only the first rows, this many; 0: all.")] = 0,
    rows: Annotated[str, typer.Option(help="Score only these rows: `3,7-9`; they count from 1.")] = "",
    system: Annotated[
        str, typer.Option("--system", "-s", help="Simulate there, instead of what rows name: a system, or a file.")
    ] = "",
    stack: Annotated[str, typer.Option(help="Software stack, instead of what rows name.")] = "",
    ops: Annotated[Path | None, typer.Option(help="Database of `etude ops`, or profile folder of the engine.")] = None,
    model: Annotated[str, typer.Option(help="Model that answered the requests.")] = "",
    tp: Annotated[int, typer.Option(min=0, help="Tensor-parallel ranks of a replica.", show_default="1")] = 0,
    ep: Annotated[int, typer.Option(min=0, help="Ranks over which experts are spread.", show_default="1")] = 0,
    precision: Annotated[str, typer.Option(help="Data type of weights and products.", show_default="bf16")] = "",
    kv_dtype: Annotated[str, typer.Option(help="Data type of keys and values; default: that of the computation.")] = "",
    replicas: Annotated[int, typer.Option(min=0, help="Copies of the model.", show_default="1")] = 0,
    router: Annotated[str, typer.Option(help="Router of `etude serve`.", show_default="least")] = "",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File for the rows: `.csv`, `.json` or `.parquet`.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace an existing file.")] = False,
    json: AsJson = False,
) -> int:
    from etude.decide.score import document, prepared, scored_files, write_rows

    if first and rows:
        raise UsageError("--first and --rows exclude one another", hint="give one of them")
    options = {"system": system, "stack": stack, "ops": ops, "model": model, "tp": tp, "ep": ep, "router": router,
               "precision": precision, "kv_dtype": kv_dtype, "replicas": replicas, "engine": engine}  # fmt: skip
    paths, notes = scored_files(files, kind=kind)
    for note in notes:
        say(f"note: {note}")
    found = []
    for path in paths:
        opened = prepared(path, kind=kind, first=first, rows=rows, **options)
        with progress(f"scoring {path.name}", len(opened.items)) as advance:
            found.append(opened.scored(advance))
    if out is not None:
        say(f"wrote {out}: {write_rows(found, out, force=force):,} rows")
    if json:
        emit(document(found), json=True)
        return 0
    emit([line for one in found for line in _lines(one, several=len(found) > 1)])
    for one in found:
        _say(one, several=len(found) > 1)
    return 0


def _lines(one: "Scored", *, several: bool) -> list[dict[str, Any]]:
    """A line for each figure."""
    known = one.summary()
    refused = sum(known.pop("refused").values())
    file = {"file": one.file.name} if several else {}
    lines = [
        {**file, "kind": one.kind, "figure": name, "rows": its["rows"], "median": f"{its['median']:.1%}",
         "p90": f"{its['p90']:.1%}", "bias": f"{its['bias']:+.1%}", "refused": refused}
        for name, its in known.items()
    ]  # fmt: skip
    nothing = {"figure": None, "rows": 0, "median": None, "p90": None, "bias": None, "refused": refused}
    return lines or [{**file, "kind": one.kind, **nothing}]


def _say(one: "Scored", *, several: bool) -> None:
    """Why rows were refused, and what was assumed of how many."""
    from collections import Counter

    where = f"{one.file.name}: " if several else ""
    refused = one.summary()["refused"]
    assumed = Counter(text for row in one.rows for text in row.get("assumed", ()))
    for what, counted in (("refused", refused), ("assumed", assumed)):
        for reason, count in list(dict(Counter(counted).most_common()).items())[:SHOWN]:
            say(f"{where}{what}, {count:,} {'row' if count == 1 else 'rows'}: {reason}")
        if len(counted) > SHOWN:
            say(f"{where}{what}: {len(counted) - SHOWN:,} more, in --json")
