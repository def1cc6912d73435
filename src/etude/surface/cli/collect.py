from pathlib import Path
from typing import Annotated

import typer

from etude.base.units import counted
from etude.surface.cli.app import MAKE, app
from etude.surface.cli.output import say


@app.command(rich_help_panel=MAKE, context_settings={"ignore_unknown_options": True})
def collect(
    command: Annotated[list[str], typer.Argument(help="The command to run, after `--`.", metavar="-- COMMAND...")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to record into.")],
    steps: Annotated[int, typer.Option(help="Optimizer steps to record.")] = 3,
    warmup: Annotated[int, typer.Option(help="Optimizer steps to skip before recording.")] = 6,
    whole: Annotated[bool, typer.Option("--whole", help="Record everything, from `import torch` to the end.")] = False,
    name: Annotated[str, typer.Option(help="Prefix of the names of the files.")] = "trace",
    stacks: Annotated[bool, typer.Option("--stacks", help="Also record Python frames.")] = False,
    allocations: Annotated[
        bool, typer.Option("--allocations", "--memory", help="Also record memory allocations.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier run.")] = False,
) -> int:
    """Run a PyTorch command, unchanged, and record every rank of it; its exit code is passed on

    etude collect -o run/ -- python train.py
    etude collect -o run/ --steps 2 -- torchrun --nproc-per-node 4 train.py

    Then `etude report run/`, or `etude link run/ -o job/`.
    """
    from etude.capture.collect import CollectOptions, launch

    asked = {"steps": None, "warmup": 0} if whole else {"steps": steps, "warmup": warmup}
    options = CollectOptions.from_dict({"name": name, "stacks": stacks, "memory": allocations, "force": force, **asked})
    done = launch(command, out, options, whole=whole)
    for problem in done.problems:
        say(f"etude collect: {problem}")
    if done.manifests:
        counts = sorted({m["steps"]["recorded"] for m in done.manifests})
        shown = f"{'-'.join(map(str, counts))} steps each" if counts[-1] else "steps not separated"
        say(f"etude collect: {counted(len(done.manifests), 'rank')}, {shown}, in {out}")
    if done.beside:
        named = ", ".join(f"{m['name']}.process{m['process']['pid']} ({m['process']['name']})" for m in done.beside)
        say(f"etude collect: other processes, not part of the job: {named}")
    return done.exit_code
