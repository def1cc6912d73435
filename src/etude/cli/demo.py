from pathlib import Path
from typing import Annotated

import typer

from etude.cli.app import LOOK, app
from etude.cli.output import say

QUERY = (
    "select name, count(*) as ranks, sum(in_bytes) as bytes from nodes "
    "where kind = 'COMM_COLL_NODE' group by 1 order by 3 desc, 1 limit 5"
)


@app.command(rich_help_panel=LOOK)
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the demo's files go.")] = Path("out/demo"),
) -> int:
    """The main path end to end on a small embedded job: no GPU, no server, no download"""
    import shutil

    from etude.demo import training_step
    from etude.files import writing
    from etude.store import chakra

    out.parent.mkdir(parents=True, exist_ok=True)
    if (out / ".etude-demo").exists():
        shutil.rmtree(out)
    with writing(out) as folder:
        (folder / "run").mkdir(parents=True)
        (folder / "broken").mkdir()
        (folder / ".etude-demo").touch()
        job = training_step()
        chakra.write_job(job, folder / "run")
        chakra.write_job(job, folder / "broken")
        (folder / "broken" / "step.5.et").unlink()
        _cut_dependency(folder / "broken" / "step.2.et")
    say("One training step of a small transformer on 8 ranks (4-way data, 2-way tensor parallel), as Chakra .et files.")
    _do("info", f"{out}/run", say="What is in it?")
    _do("check", f"{out}/run", say="Is it sound?")
    _do(
        "convert",
        f"{out}/run",
        f"{out}/parquet",
        "--to",
        "parquet",
        say="One Parquet folder; equal ranks share a trace.",
    )
    _do("query", f"{out}/parquet", QUERY, say="Where do the bytes go?")
    _do("diff", f"{out}/run", f"{out}/parquet", say="Nothing was lost:")
    _do(
        "check",
        f"{out}/broken",
        say="And a broken copy (rank 5 is gone, rank 2 waits for a node that is not there):",
        expect=1,
    )
    _do("simulate", f"{out}/run", "--system", "dgx-h100", say="How long does the step take on one DGX H100, and why?")
    times = f"{out}/slow.parquet"
    _do("simulate", f"{out}/run", "--system", "dgx-h100", "--slow-rank", "3=1.2", "--timing", times,
        say="And if the GPU of rank 3 were 20% slow? Everybody waits for it:")  # fmt: skip
    _do("report", f"{out}/run", "--timing", times, "--title", "A step with a slow GPU", "-o", f"{out}/report.html",
        say="What happened there, on one page:")  # fmt: skip
    say(f"\nOpen {out}/report.html in a browser. The other files are in {out}. Next: etude --help")
    return 0


def _do(*args: str, say: str, expect: int = 0) -> None:
    """Show a command as a user would type it, and run it."""
    import sys

    from etude.cli import main
    from etude.errors import EtudeError

    sys.stdout.flush()
    shown = " ".join(f'"{a}"' if " " in a else a for a in args)
    print(f"\n{say}\n$ etude {shown}", file=sys.stderr, flush=True)
    code = main(list(args))
    sys.stdout.flush()
    if code != expect:
        raise EtudeError(f"the demo expected exit code {expect} of `etude {args[0]}`, and got {code}")


def _cut_dependency(path: Path) -> None:
    """Make the last node wait for a node that does not exist: what a profiler window does that ends too early."""
    import numpy as np

    from etude.store import chakra

    decoded = chakra.decode(path.read_bytes(), str(path))
    data = decoded.trace.data.copy()
    data[-1] = ~0
    trace = decoded.trace.replace(data=data, missing=np.array([9001], np.uint64))
    whole = chakra.Decoded(
        trace, decoded.metadata, decoded.group_names, decoded.peers, decoded.start_ns, decoded.warnings
    )
    path.write_bytes(chakra.encode(whole))
