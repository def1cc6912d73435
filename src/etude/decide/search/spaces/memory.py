"""What is kept in a small device's memory and what on the host, and who computes what: one sequence on a client.

search: memory
model: qwen3-30b-a3b
device: rtx5090
host: desktop
vram: [2GB, 4GB, 8GB, 24GB]
prompt: 4096
output: 64
bits: 4.5
score: request             # or tokens (a second), or ttft

Every tensor of a layer is in the device, or on the host; then it is copied when its turn comes, or the host
computes it. Copies overlap with all else. A pass takes as long as the longest of: everything that is computed, one
after another; the link; the host's memory. Methods: `ilp`, `all`, and `greedy`, which fills the device by density of
use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import prod
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import figure
from etude.base.units import format_bytes, parse_bytes
from etude.decide.search.found import Found, Row
from etude.decide.search.pieces import Client, PieceWork, TensorPiece, client_of, pieces_of
from etude.decide.search.programs import IntegerProgram
from etude.decide.search.request import SearchRequest, SpaceFile, known_word
from etude.decide.search.solver import Answer, CandidateSpace, Trials, every

PHASES: Final = ("prompt", "token")
COLUMNS: Final = {"request": "request_ms", "tokens": "token_ms", "ttft": "ttft_ms"}
WAYS: Final = ("copy", "cpu")
MOST: Final = 3_000_000
"""Most placements that `all` tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The keys of the space, besides `vram` and `ways`."""

    model: str = figure("text", "a model of the catalogue, or a file")
    device: str = figure("text", "a device of the catalogue, or a file", "rtx5090")
    host: str = figure("text", "system whose host memory and cores are below it", "desktop")
    prompt: int = figure("count", "tokens in", 4096)
    output: int = figure("count", "tokens out", 64)
    bits: float = figure("number", "bits of a weight; keys and values have 16", 16.0)
    buffers_bytes: int = figure(
        "bytes", "fraction of the device's memory that is always in use", 500_000_000, zero=True
    )
    score: str = figure("text", "request, tokens or ttft", "request")
    cut: bool = figure("flag", "tensors of a layer are placed one by one; false: whole layers", True)
    overlap: bool = figure("flag", "copies overlap with other work; false: each is waited for", True)


Sums = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class PieceCounts:
    """Counts of each piece: in the device, and among the others those that are copied; the host computes the rest."""

    resident: tuple[int, ...]
    copied: Mapping[str, tuple[int, ...]]
    """By phase."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    pieces: tuple[TensorPiece, ...]
    client: Client
    ways: tuple[str, ...]
    overlap: bool
    weights: Mapping[str, float]
    """Weight of a pass of each phase in the score."""
    known: dict[tuple[str, str], dict[str, Sums]] = field(default_factory=dict)

    def costs(self, piece: TensorPiece, phase: str) -> dict[str, Sums]:
        """ms of (sequential compute, the link, the host's memory) of one piece, by way."""
        known = self.known.get((piece.name, phase))
        if known is None:
            known = self.known[piece.name, phase] = self._costs(getattr(piece, phase))
        return known

    def _costs(self, work: PieceWork) -> dict[str, Sums]:
        near, far = self.client.device_ms(work), self.client.host_ms(work)
        link = work.read_bytes / self.client.link_bytes_per_ms
        read = work.read_bytes / self.client.far_bytes_per_ms
        waits = 0.0 if self.overlap and work.ahead else link
        return {"vram": (near, 0.0, 0.0), "copy": (near + waits, link, read), "cpu": (far, 0.0, read)}


def space(given: SpaceFile, asked: SearchRequest) -> MemorySpace:
    return MemorySpace(given, asked.one_of(*METHODS))


class MemorySpace(CandidateSpace[int]):
    """Memories of the device, each with what is best kept in it."""

    def __init__(self, given: SpaceFile, method: str) -> None:
        from etude.machine import open_device
        from etude.make.generate.model import open_model

        keys = {key: value for key, value in given.keys.items() if key not in ("vram", "ways")}
        self.where, self.method, self.listed = given.where, method, _rooms(given)
        self.asking = asking = SpaceFile(kind=given.kind, keys=keys, where=given.where).read(Asking)
        known_word("score", asking.score, COLUMNS, given.where)
        pieces = pieces_of(open_model(asking.model), asking.prompt, asking.bits, whole=not asking.cut)
        weights = {"request": (1.0, float(asking.output - 1)), "tokens": (0.0, 1.0), "ttft": (1.0, 0.0)}[asking.score]
        client = client_of(open_device(asking.device), open_device(asking.host))
        phases = dict(zip(PHASES, weights, strict=True))
        self.problem = Problem(tuple(pieces), client, _ways(given), asking.overlap, phases)
        self.methods, self.size = dict.fromkeys(METHODS, every), len(self.listed)
        self.scores = {COLUMNS[asking.score]: 1}

    def bound(self, one: int) -> Answer:
        return {} if one >= self.asking.buffers_bytes else "buffers"

    def rows(self, some: Sequence[int], limit: float) -> list[Row]:
        rooms = ((vram, vram - self.asking.buffers_bytes) for vram in some)
        return [
            _row(self.problem, placed_by(self.problem, room, self.method), vram, self.asking) for vram, room in rooms
        ]

    def order(self, one: int, row: Row) -> int:
        return one

    def found(self, trials: Trials[int]) -> Found:
        rows = list(trials.rows.values())
        if not rows:
            hint = "use more `vram`"
            raise UsageError("the device has less memory than the buffers need", where=self.where, hint=hint)
        sizes = {piece.name: piece.size_bytes * piece.count for piece in self.problem.pieces}
        more = {"score": self.asking.score, "method": self.method, "sizes": sizes}
        return trials.found(frontier=rows, rows=rows, more=more)


def _rooms(given: SpaceFile) -> list[int]:
    texts = given.keys.get("vram")
    if texts is None:
        raise UsageError("key `vram` is missing", where=given.where, hint="vram: [2GB, 8GB, 24GB]")
    return sorted({parse_bytes(text) for text in (texts if isinstance(texts, list) else [texts])})


def _ways(given: SpaceFile) -> tuple[str, ...]:
    found = given.keys.get("ways", list(WAYS))
    if not isinstance(found, list) or not found or any(way not in WAYS for way in found):
        raise UsageError(f"`ways` is {found}", where=given.where, hint="ways: [copy, cpu], or one of them")
    return tuple(found)


def placed_by(problem: Problem, room_bytes: float, method: str = "ilp") -> PieceCounts:
    return METHODS[method](problem, room_bytes)


def pass_ms(problem: Problem, placed: PieceCounts, phase: str) -> float:
    """Time of one pass: the longest of sequential compute, the link, and the host's memory."""
    turn = link = host = 0.0
    for piece, here, copied in zip(problem.pieces, placed.resident, placed.copied[phase], strict=True):
        costs = problem.costs(piece, phase)
        for way, count in (("vram", here), ("copy", copied), ("cpu", piece.count - here - copied)):
            one = costs[way]
            turn, link, host = turn + count * one[0], link + count * one[1], host + count * one[2]
    return max(turn, link, host)


def _score(problem: Problem, placed: PieceCounts) -> tuple[float, float]:
    """The score, then both phases together to break ties."""
    took = {phase: pass_ms(problem, placed, phase) for phase in PHASES}
    return sum(problem.weights[phase] * took[phase] for phase in PHASES), sum(took.values())


def _exact(problem: Problem, room_bytes: float) -> PieceCounts:
    """By integer programming: equal pieces are counted. A phase that is not in the score is optimised afterwards."""
    scored = [phase for phase in PHASES if problem.weights[phase]]
    placed = _program(problem, room_bytes, scored, None)
    for phase in PHASES:
        if phase not in scored:
            rest = _program(problem, room_bytes, [phase], placed.resident)
            placed = PieceCounts(placed.resident, {**placed.copied, phase: rest.copied[phase]})
    return placed


def _program(problem: Problem, room_bytes: float, phases: Sequence[str], fixed: Sequence[int] | None) -> PieceCounts:
    program = IntegerProgram()
    here = [program.variable(most=piece.count, whole=True) for piece in problem.pieces]
    program.row({v: p.size_bytes for v, p in zip(here, problem.pieces, strict=True)}, most=room_bytes)
    for v, count in zip(here, fixed or (), strict=False):
        program.row({v: 1.0}, least=count, most=count)
    copies: dict[str, list[int]] = {}
    for phase in phases:
        whole = program.variable(problem.weights[phase] or 1.0)
        sums: list[dict[int, float]] = [{whole: -1.0} for _ in range(3)]
        copies[phase] = []
        for piece, v in zip(problem.pieces, here, strict=True):
            costs = problem.costs(piece, phase)
            counts = {"vram": v}
            for way in WAYS:
                counts[way] = program.variable(most=piece.count if way in problem.ways else 0.0, whole=True)
            program.row(dict.fromkeys(counts.values(), 1.0), least=piece.count, most=piece.count)
            for way, variable in counts.items():
                for total, ms in zip(sums, costs[way], strict=True):
                    total[variable] = ms
            copies[phase].append(counts["copy"])
        for total in sums:
            program.row(total, most=0.0)
    solved = program.solve()
    assert solved is not None  # an empty device is always a placement
    whole_of = solved.values.astype(int).tolist()
    return PieceCounts(tuple(whole_of[v] for v in here), {p: tuple(whole_of[v] for v in copies[p]) for p in phases})


def _every(problem: Problem, room_bytes: float) -> PieceCounts:
    """All counts in the device, and for each of them all counts of copies, phase by phase."""
    counts = [piece.count for piece in problem.pieces]
    if prod((n + 1) * (n + 2) // 2 for n in counts) > MOST:
        raise UsageError(f"more than {MOST:,} placements", hint="--method ilp, or a model of fewer layers")
    held = [piece.size_bytes for piece in problem.pieces]
    fitting = (
        here
        for here in product(*(range(n + 1) for n in counts))
        if sum(n * size for n, size in zip(here, held, strict=True)) <= room_bytes
    )
    placed = (PieceCounts(here, {phase: _copies(problem, here, phase) for phase in PHASES}) for here in fitting)
    return min(placed, key=partial(_score, problem))


def _copies(problem: Problem, here: Sequence[int], phase: str) -> tuple[int, ...]:
    """The best of all counts of copies."""
    left = [piece.count - n for piece, n in zip(problem.pieces, here, strict=True)]
    ranges = [range(n + 1) if len(problem.ways) == 2 else [n if problem.ways == ("copy",) else 0] for n in left]
    return min(product(*ranges), key=lambda copied: pass_ms(problem, PieceCounts(tuple(here), {phase: copied}), phase))


def _greedy(problem: Problem, room_bytes: float) -> PieceCounts:
    """Pieces with the most reads per byte held go to the device; then, piece by piece, the way that ends sooner."""
    order = sorted(range(len(problem.pieces)), key=lambda i: -_density(problem.pieces[i]))
    here, left = [0] * len(order), room_bytes
    for i in order:
        here[i] = min(problem.pieces[i].count, int(left // problem.pieces[i].size_bytes))
        left -= here[i] * problem.pieces[i].size_bytes
    copied: dict[str, tuple[int, ...]] = {}
    for phase in PHASES:
        chosen = [0 if "cpu" in problem.ways else p.count - n for p, n in zip(problem.pieces, here, strict=True)]
        for i in order if len(problem.ways) == 2 else []:
            tries = [[*chosen[:i], n, *chosen[i + 1 :]] for n in range(problem.pieces[i].count - here[i] + 1)]
            took = [pass_ms(problem, PieceCounts(tuple(here), {phase: tuple(one)}), phase) for one in tries]
            chosen = tries[took.index(min(took))]
        copied[phase] = tuple(chosen)
    return PieceCounts(tuple(here), copied)


METHODS: Final = {"ilp": _exact, "greedy": _greedy, "all": _every}
"""How a memory is filled."""


def _density(piece: TensorPiece) -> float:
    return piece.token.read_bytes / piece.size_bytes if piece.size_bytes else 0.0


def _row(problem: Problem, placed: PieceCounts, vram: int, asking: Asking) -> Row:
    took = {phase: pass_ms(problem, placed, phase) for phase in PHASES}
    read = dict.fromkeys(("vram", "link", "host"), 0.0)
    where: dict[str, Any] = {}
    for i, piece in enumerate(problem.pieces):
        here, copied = placed.resident[i], {phase: placed.copied[phase][i] for phase in PHASES}
        size = piece.token.read_bytes
        read["vram"] += (here + copied["token"]) * size
        read["link"] += copied["token"] * size
        read["host"] += (piece.count - here) * size
        where[piece.name] = {"vram": here} | {
            f"{phase} {way}": n
            for phase in PHASES
            for way, n in (("copy", copied[phase]), ("cpu", piece.count - here - copied[phase]))
        }
    return {
        "vram": format_bytes(vram),
        "vram_bytes": vram,
        "tokens_per_s": 1e3 / took["token"],
        "token_ms": took["token"],
        "ttft_ms": took["prompt"],
        "request_ms": took["prompt"] + (asking.output - 1) * took["token"],
        "resident_bytes": sum(n * p.size_bytes for n, p in zip(placed.resident, problem.pieces, strict=True)),
        "read_bytes": read,
        "where": where,
    }
