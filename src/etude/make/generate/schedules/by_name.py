"""Pipeline schedules by name: `schedule("interleaved:4", ranks=8, micro_batches=32)`.

GPipe, 1F1B, interleaved 1F1B and looped breadth-first are here; those that split the backward are in `zero_bubble`, `v`
and `dual`, those that update without a flush in `asynchronous`; a user's schedule is read by `csv`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from etude.base.errors import UsageError
from etude.base.grammar import LinePiece, line
from etude.make.generate.schedules.asynchronous import Async, asynchronous
from etude.make.generate.schedules.csv import read as read_csv
from etude.make.generate.schedules.dual import dualpipe, dualpipev
from etude.make.generate.schedules.pipeline import Action, PipelineSchedule, Step, build
from etude.make.generate.schedules.v import v_half, v_min
from etude.make.generate.schedules.zero_bubble import zb1p, zb2p, zbv

F, B = Action.FORWARD, Action.BACKWARD


def gpipe(ranks: int, micro_batches: int) -> PipelineSchedule:
    """All forwards, then all backwards."""
    orders = [_forwards(rank, micro_batches) + _backwards(rank, micro_batches) for rank in range(ranks)]
    return build("gpipe", ranks, micro_batches, orders, [(r,) for r in range(ranks)])


def _forwards(stage: int, micro_batches: int) -> list[Step]:
    return [(F, stage, m, False) for m in range(micro_batches)]


def _backwards(stage: int, micro_batches: int) -> list[Step]:
    return [(B, stage, m, False) for m in range(micro_batches)]


def one_f_one_b(ranks: int, micro_batches: int, behind: int = 0) -> PipelineSchedule:
    """Forwards until the first backward can come, then one forward and one backward alternately. `behind`:
    micro-batches in flight after the last rank before the first returns."""
    orders = [
        _in_turn(_forwards(rank, micro_batches), _backwards(rank, micro_batches), behind + ranks - rank - 1)
        for rank in range(ranks)
    ]
    return build("1f1b", ranks, micro_batches, orders, [(r,) for r in range(ranks)])


def part_of(whole: PipelineSchedule, chunk: int) -> PipelineSchedule:
    """What a schedule with several chunks per rank does with one of them, as a separate schedule."""
    ranks, name = whole.ranks, f"{whole.name}#{chunk}"
    orders: list[list[Step]] = []
    for rank in range(ranks):
        rows = whole.rows(rank)
        mine = whole.stage[rows] // ranks == chunk
        columns = (whole.action[rows][mine].tolist(), whole.micro_batch[rows][mine].tolist())
        orders.append([(Action(a), rank, m, False) for a, m in zip(*columns, strict=True)])
    return build(name, ranks, whole.micro_batches, orders, [(r,) for r in range(ranks)])


def _in_turn(forwards: list[Step], backwards: list[Step], ahead: int) -> list[Step]:
    """`ahead` forwards, then forwards and backwards alternately, then the rest."""
    order = forwards[:ahead]
    for k, forward in enumerate(forwards[ahead:]):
        order += [forward, backwards[k]]
    return order + backwards[max(0, len(forwards) - ahead) :]


def interleaved(ranks: int, micro_batches: int, chunks: int = 2) -> PipelineSchedule:
    """1F1B with `chunks` stages per rank, in Megatron's order: groups of `ranks` micro-batches go through chunk after
    chunk, so the bubble is 1/chunks of that of 1F1B."""
    if micro_batches % ranks:
        problem = f"{micro_batches} micro-batches on {ranks} ranks: not a multiple"
        hint = "micro-batches pass through the chunks in groups of the number of ranks"
        raise UsageError(problem, where=f"schedule `interleaved:{chunks}`", hint=hint)
    orders = []
    for rank in range(ranks):
        forwards, backwards = _chunks_in_turn(rank, ranks, micro_batches, chunks)
        orders.append(_in_turn(forwards, backwards, _ahead(rank, ranks, chunks)))
    return build(f"interleaved:{chunks}", ranks * chunks, micro_batches, orders, looped(ranks, chunks))


def _ahead(rank: int, ranks: int, chunks: int) -> int:
    """Forwards of a rank before its first backward, interleaved."""
    return 2 * (ranks - rank - 1) + (chunks - 1) * ranks


def _chunks_in_turn(rank: int, ranks: int, micro_batches: int, chunks: int) -> tuple[list[Step], list[Step]]:
    """Forwards and backwards of a rank: groups of `ranks` micro-batches go through chunk after chunk."""
    steps: list[list[Step]] = []
    for action in (F, B):
        order: list[Step] = []
        for k in range(micro_batches * chunks):
            group, place = divmod(k, ranks * chunks)
            chunk, member = divmod(place, ranks)
            chunk = chunk if action == F else chunks - 1 - chunk
            order.append((action, chunk * ranks + rank, group * ranks + member, False))
        steps.append(order)
    return steps[0], steps[1]


def pairs(ranks: int, micro_batches: int, chunks: int = 2) -> PipelineSchedule:
    """Interleaved 1F1B in which each forward runs together with a backward of another micro-batch, so that one computes
    while the other exchanges: one more forward comes before the first backward."""
    if micro_batches % ranks:
        problem = f"{micro_batches} micro-batches on {ranks} ranks: not a multiple"
        hint = "micro-batches pass through the chunks in groups of the number of ranks"
        raise UsageError(problem, where=f"schedule `paired:{chunks}`", hint=hint)
    orders = []
    for rank in range(ranks):
        forwards, backwards = _chunks_in_turn(rank, ranks, micro_batches, chunks)
        ahead = _ahead(rank, ranks, chunks) + 1
        together = [(*step[:3], True) for step in forwards[ahead:]]
        orders.append(_in_turn(forwards[:ahead] + together, backwards, ahead))
    return build(f"paired:{chunks}", ranks * chunks, micro_batches, orders, looped(ranks, chunks))


def looped(ranks: int, chunks: int) -> list[tuple[int, ...]]:
    """Stages of each rank if they are assigned round robin."""
    return [tuple(chunk * ranks + rank for chunk in range(chunks)) for rank in range(ranks)]


def looped_bfs(ranks: int, micro_batches: int, chunks: int = 2) -> PipelineSchedule:
    """All micro-batches through one chunk before the next; backwards in reverse. Weights are used contiguously, so they
    can be fetched and released once per chunk."""
    orders = []
    for held in looped(ranks, chunks):
        forward = [step for stage in held for step in _forwards(stage, micro_batches)]
        backward = [step for stage in reversed(held) for step in _backwards(stage, micro_batches)]
        orders.append(forward + backward)
    return build(f"looped_bfs:{chunks}", ranks * chunks, micro_batches, orders, looped(ranks, chunks))


@dataclass(frozen=True, slots=True)
class Known:
    """A named schedule."""

    make: Callable[..., PipelineSchedule]
    chunks: int
    """Stages per rank; 0 if the name says it, `NAME:CHUNKS`."""
    doc: str
    steady: int = 1
    """Micro-batches per rank from which each additional one takes equally long; 0 if unknown."""


KNOWN: dict[str, Known] = {
    "gpipe": Known(gpipe, 1, "all forwards, then all backwards"),
    "1f1b": Known(one_f_one_b, 1, "one forward, one backward"),
    "interleaved": Known(interleaved, 0, "1F1B with several stages per rank"),
    "paired": Known(pairs, 0, "interleaved, each forward together with a backward", 2),
    "looped_bfs": Known(looped_bfs, 0, "breadth first over several stages per rank"),
    "zb1p": Known(zb1p, 1, "a third of the bubble of 1F1B, the same memory"),
    "zb2p": Known(zb2p, 1, "no bubble, twice the memory"),
    "zbv": Known(zbv, 2, "no bubble, the memory of 1F1B"),
    "vhalf": Known(v_half, 2, "half the bubble, half the memory"),
    "vmin": Known(v_min, 2, "two thirds of the bubble, a third of the memory"),
    "dualpipe": Known(dualpipe, 2, "both directions at once, parameters stored twice", 2),
    "dualpipev": Known(dualpipev, 2, "DualPipe folded into a V", 2),
    "async": Known(asynchronous, 0, "several directions, updates without a flush", 0),
}
ALIASES = {
    "interleaved1f1b": "interleaved",
    "vpp": "interleaved",
    "bfs": "looped_bfs",
    "loopedbfs": "looped_bfs",
    "zbh1": "zb1p",
    "zbh2": "zb2p",
    "zb": "zb1p",
}


def _cut(text: str) -> tuple[LinePiece, LinePiece | None]:
    """Name and options."""
    return line(text, f"schedule `{text}`", "1f1b, interleaved:2, or async:4,admit=2,window=8,flush").cut(":")


@lru_cache(maxsize=256)
def parse(text: str) -> tuple[str, int]:
    """(name, chunks per rank) of `1f1b`, `interleaved:4`, `V-Half`, ...; chunks of a CSV file are 0, known once
    read."""
    if text.lower().endswith(".csv"):
        return text, 0
    word, number = _cut(text.partition("#")[0])
    plain = word.text.lower().replace("-", "").replace("_", "")
    name = next((k for k in KNOWN if k.replace("_", "") == plain), ALIASES.get(plain, ""))
    if not name and plain == "roundrobin":
        raise UsageError(
            "`roundrobin` does not order a rank's own stages", hint="`etude generate --schedule roundrobin`"
        )
    if not name:
        hint = f"known: {', '.join(KNOWN)}, roundrobin, or a file that ends in .csv"
        raise UsageError(f"unknown pipeline schedule `{text}`", hint=hint)
    if name == "async":
        return name, Async.parse(number).directions
    if name == "1f1b" and number is not None:
        number.count(zero=True, most=999_999)
        return name, 1
    if KNOWN[name].chunks and number is not None:
        raise number.wrong(f"{name} takes no number of chunks", f"write `{name}`")
    return name, KNOWN[name].chunks or (number.count(most=9999) if number is not None else 2)


def steady_from(text: str, *, ranks: int) -> int:
    """The fewest micro-batches of a schedule from which each additional one takes equally long; 0 if unknown: for
    files, and for schedules that do not end with their step."""
    plain = text.lower().replace("-", "").replace("_", "")
    if plain.endswith(".csv") or plain.startswith("roundrobin"):
        return 0
    return KNOWN[parse(text)[0]].steady * max(ranks, 2)


def schedule(text: str, *, ranks: int, micro_batches: int, steps: int = 1) -> PipelineSchedule:
    """The schedule of this name for this many pipeline ranks and micro-batches of a step; refused if impossible. Only a
    schedule without a flush between steps depends on their number: it contains all of them."""
    if text.lower().endswith(".csv"):  # the file may change
        return _made(text, ranks, micro_batches, steps)
    return _kept(text, ranks, micro_batches, steps)


@lru_cache(maxsize=256)
def _kept(text: str, ranks: int, micro_batches: int, steps: int) -> PipelineSchedule:
    """Cached: schedules are frozen, and plans of a search share them."""
    return _made(text, ranks, micro_batches, steps)


def _made(text: str, ranks: int, micro_batches: int, steps: int) -> PipelineSchedule:
    name, chunks = parse(text)
    if ranks < 1 or micro_batches < 1:
        raise UsageError(f"{ranks} ranks and {micro_batches} micro-batches: at least one of each is needed")
    if name not in KNOWN:
        return read_csv(name, ranks=ranks, micro_batches=micro_batches)
    if name == "async":
        return asynchronous(ranks, micro_batches, steps, Async.parse(_cut(text)[1]))
    if name == "1f1b":
        held = _cut(text)[1]
        return one_f_one_b(ranks, micro_batches, 0 if held is None else held.count(zero=True))
    make, chunk = KNOWN[name].make, text.partition("#")[2]
    if chunk:
        if name != "interleaved" or chunk not in map(str, range(chunks)):
            raise UsageError(f"`{text}`: a part is one of the chunks of `interleaved`", hint="interleaved:2#0")
        return part_of(make(ranks, micro_batches, chunks), int(chunk))
    return make(ranks, micro_batches) if KNOWN[name].chunks else make(ranks, micro_batches, chunks)
