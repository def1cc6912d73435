"""The dependency graph of a rank: what `etude graph` asks for."""

from dataclasses import dataclass

from etude.base.errors import UsageError
from etude.base.figures import figure, text
from etude.base.outputs import OutputPlace, Written
from etude.steps.asked.jobs import JobInput, JobSource

DRAWN = "What is drawn"
ENDINGS = (".svg", ".dot", ".graphml")


@dataclass(frozen=True, kw_only=True)
class GraphOf(JobInput, Written):
    """The dependency graph of a rank, or its part around one node, as a picture or for graph tools

    etude graph run/ --around 812 --hops 2 -o g.svg
    etude graph run/ --rank 3 -o whole.graphml
    """

    out: str = figure("out", "the file to write: `g.svg`, `g.dot` or `g.graphml`", names=("-o",), like="h.dot")
    around: str = text("draw the part around this node: its row, `id=N`, or its name", panel=DRAWN, like="812")
    hops: int = figure(
        "count",
        "how many dependencies away from the node, in both directions",
        3,
        zero=True,
        needs="around",
        panel=DRAWN,
    )
    rank: int | None = figure("count", "rank whose graph is drawn; by default the first", None, zero=True, panel=DRAWN)


@dataclass(frozen=True, slots=True)
class GraphInputs:
    source: JobSource
    place: OutputPlace
    rank: int | None
    around: str
    hops: int


def inputs(asked: GraphOf) -> GraphInputs:
    place = OutputPlace.of(asked)
    assert place is not None
    if place.path.suffix not in ENDINGS:
        problem = f"a graph cannot be written as `{place.path.suffix}`"
        raise UsageError(problem, where=f"--out {place.path}", hint=", ".join(ENDINGS))
    around = asked.around
    return GraphInputs(JobSource.of(asked), place, asked.rank, around, asked.hops if around else 0)


def run(given: GraphInputs) -> str:
    from etude.base.files import writing
    from etude.tell.view.graph import find_node, part_of, write_dot, write_graphml
    from etude.tell.view.graph_svg import svg

    job, out = given.source.open(), given.place.path
    if not len(job):
        raise UsageError("the job has no ranks", where=str(given.source.path))
    who = int(job.ranks[0]) if given.rank is None else given.rank
    trace = job.trace(who)
    part = part_of(trace, find_node(trace, given.around) if given.around else None, given.hops)
    picture = svg(part, f"rank {who}: {len(part)} nodes") if out.suffix == ".svg" else ""
    with writing(out, force=given.place.force) as place, place.open("wb") as file:
        if picture:
            file.write(picture.encode())
        else:
            (write_dot if out.suffix == ".dot" else write_graphml)(part, file)
    return f"wrote {out}: {len(part):,} nodes and {len(part.before):,} dependencies of rank {who}"
