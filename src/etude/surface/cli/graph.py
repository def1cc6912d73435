from pathlib import Path
from typing import Annotated

import typer

from etude.surface.cli.app import LOOK, app
from etude.surface.cli.inputs import GroupFile, JobPath, MaxBytes, Workers, open_job
from etude.surface.cli.output import say

ENDINGS = (".svg", ".dot", ".graphml")


@app.command(rich_help_panel=LOOK)
def graph(
    path: JobPath,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write: `g.svg`, `g.dot` or `g.graphml`.")],
    around: Annotated[str, typer.Option(help="Draw the part around this node: its row, `id=N`, or its name.")] = "",
    hops: Annotated[
        int, typer.Option(min=0, help="With --node, how many dependencies away from it, in both directions.")
    ] = 3,
    rank: Annotated[int | None, typer.Option(help="Rank whose graph is drawn; by default the first.")] = None,
    groups: GroupFile = None,
    workers: Workers = 0,
    max_bytes: MaxBytes = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace existing output.")] = False,
) -> None:
    """The dependency graph of a rank, or its part around one node, as a picture or for graph tools

    etude graph run/ --around 812 --hops 2 -o g.svg
    etude graph run/ --rank 3 -o whole.graphml
    """
    from etude.base.errors import UsageError
    from etude.base.files import writing
    from etude.tell.view.graph import find_node, part_of, write_dot, write_graphml
    from etude.tell.view.graph_svg import svg

    if out.suffix not in ENDINGS:
        raise UsageError(f"a graph cannot be written as `{out.suffix}`", where=str(out), hint=", ".join(ENDINGS))
    job = open_job(path, groups, workers, max_bytes)
    if not len(job):
        raise UsageError("the job has no ranks", where=str(path))
    who = int(job.ranks[0]) if rank is None else rank
    trace = job.trace(who)
    part = part_of(trace, find_node(trace, around) if around else None, hops)
    picture = svg(part, f"rank {who}: {len(part)} nodes") if out.suffix == ".svg" else ""
    with writing(out, force=force) as place, place.open("wb") as file:
        if picture:
            file.write(picture.encode())
        else:
            (write_dot if out.suffix == ".dot" else write_graphml)(part, file)
    say(f"wrote {out}: {len(part):,} nodes and {len(part.before):,} dependencies of rank {who}")
