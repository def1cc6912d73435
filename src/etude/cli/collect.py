from pathlib import Path
from typing import Annotated

import typer

from etude.cli.app import MAKE, app
from etude.cli.output import say


@app.command(rich_help_panel=MAKE, context_settings={"ignore_unknown_options": True})
def collect(
    command: Annotated[list[str], typer.Argument(help="What to run, after `--`.", metavar="-- COMMAND...")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to record into.")],
    steps: Annotated[int, typer.Option(help="Optimizer steps to record.")] = 3,
    warmup: Annotated[int, typer.Option(help="Optimizer steps to let pass before.")] = 6,
    whole: Annotated[bool, typer.Option("--whole", help="Record all, from `import torch` to the end.")] = False,
    name: Annotated[str, typer.Option(help="What the names of the files start with.")] = "trace",
    stacks: Annotated[bool, typer.Option("--stacks", help="Record Python frames, too.")] = False,
    allocations: Annotated[
        bool, typer.Option("--allocations", "--memory", help="Record allocations of memory, too.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier run.")] = False,
) -> int:
    """Run a PyTorch command, unchanged, and record every rank of it; its exit code is passed on"""
    from etude.collect import CollectOptions, launch

    asked = {"steps": None, "warmup": 0} if whole else {"steps": steps, "warmup": warmup}
    options = CollectOptions.from_dict({"name": name, "stacks": stacks, "memory": allocations, "force": force, **asked})
    done = launch(command, out, options, whole=whole)
    for problem in done.problems:
        say(f"etude collect: {problem}")
    if done.manifests:
        counts = sorted({m["steps"]["recorded"] for m in done.manifests})
        shown = f"{'-'.join(map(str, counts))} steps each" if counts[-1] else "no steps told apart"
        say(f"etude collect: {len(done.manifests)} ranks, {shown}, in {out}")
    if done.beside:
        named = ", ".join(f"{m['name']}.process{m['process']['pid']} ({m['process']['name']})" for m in done.beside)
        say(f"etude collect: not part of the job, beside it: {named}")
    return done.exit_code
