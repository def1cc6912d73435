from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from etude.base.errors import UsageError
from etude.surface.cli.app import RUN, app
from etude.surface.cli.output import AsJson, emit, progress, say

if TYPE_CHECKING:
    from etude.steps.measured import Calibrated

EXAMPLE = """Your own software stack, from measured steps or a recorded run

[bold]Example[/bold]

  etude calibrate measured.csv --from nemo -o my-stack.yaml
  etude calibrate run/ --ran-on dgx-h100 -o my-stack.yaml
  etude predict llama3-8b --gpus 64 --zero 3 --stack my-stack.yaml --system dgx-h100

A CSV has the columns that `etude predict --rows` reads; a run is what PyTorch recorded, with shapes. The
error before is that of the stack it starts from; the error after is that of each row with a stack fitted to all
others.
"""


@app.command(rich_help_panel=RUN, help=EXAMPLE)
def calibrate(
    path: Annotated[Path, typer.Argument(help="CSV file of measured steps, or a recorded run.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="YAML file of the stack.", show_default=False)],
    base: Annotated[str, typer.Option("--from", help="Stack to start from: a name, or a YAML file.")] = "default",
    ran_on: Annotated[str, typer.Option("--ran-on", help="System that a recorded run ran on.")] = "",
    system: Annotated[str, typer.Option("--system", "-s", hidden=True)] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace existing output.")] = False,
    json: AsJson = False,
) -> int:
    import yaml

    from etude.base.files import writing

    if out.suffix not in (".yaml", ".yml"):
        raise UsageError(f"`{out}` is not the name of a YAML file", hint="-o my-stack.yaml")
    if system:
        say("note: --system is the old name of --ran-on: nothing is simulated there")
    found = _calibrated(path, base, ran_on or system, out.stem)
    with writing(out, force=force) as temporary:
        temporary.write_text(yaml.safe_dump(found.stack.to_dict(), sort_keys=False, allow_unicode=True), "utf-8")
    _tell(found, json=json)
    say(f"wrote {out}")
    return 0


def _calibrated(path: Path, base: str, ran_on: str, name: str) -> "Calibrated":
    from etude.cost.stacks import open_stack
    from etude.steps.measured import calibrate as from_rows
    from etude.steps.measured import calibrate_run, read_rows

    start = open_stack(base)
    if path.suffix.lower() == ".csv":
        rows = read_rows(path)
        with progress("simulating rows", len(rows)) as advance:
            return from_rows(rows, start, name, advance=advance)
    from etude.machine import open_system
    from etude.surface.cli.runs import open_run

    if not ran_on:
        raise UsageError("a recorded run needs the system that it ran on", hint="--ran-on dgx-h100")
    return calibrate_run(open_run(path, None, 1), open_system(ran_on), start, name)


def _tell(found: "Calibrated", *, json: bool) -> None:
    """Prints the number of rows, the errors before and after, and the rejected rows."""
    import numpy as np

    def middle(errors: tuple[float, ...]) -> dict[str, float]:
        half, most = np.percentile(np.abs(errors), [50, 90])
        return {"p50": round(float(half), 4), "p90": round(float(most), 4)}

    before, after = middle(found.before), middle(found.after)
    for refused in found.refused:
        say(f"row {refused.row} is rejected: {refused.why}")
    if json:
        emit({"stack": found.stack.name, "rows": found.rows, "before": before, "after": after}, json=True)
        return
    emit(
        {
            "rows": found.rows,
            "error before": f"{before['p50']:.1%}, 9 of 10 below {before['p90']:.1%}",
            "error after, each row left out": f"{after['p50']:.1%}, 9 of 10 below {after['p90']:.1%}",
        }
    )
