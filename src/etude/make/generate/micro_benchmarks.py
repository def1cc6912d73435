"""Micro-benchmarks: one collective or one pattern of messages, any number of times, with or without compute.

Every rank of a role runs the same program, so a job of any number of ranks is a few traces and a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.base.grammar import line
from etude.model.build import TraceBuilder
from etude.model.job import MAX_WORLD, Groups, Job
from etude.model.roles import Role, job_of_roles
from etude.model.schema import Collective, Kind
from etude.model.trace import Trace

MAX_EDGES = 20_000_000
"""Nodes and dependencies of one trace; more is taken as a mistake."""
MAX_ALL_PAIRS = 4096

COLLECTIVES = tuple(c for c in Collective if Collective.NONE < c < Collective.OTHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroOptions:
    """What is measured. `sizes` go one after another, `repeat` times."""

    ranks: int
    sizes: tuple[int, ...] = (64_000_000,)
    """Input bytes on each rank: the whole vector of an all-reduce, the contribution to an all-gather, one message."""
    repeat: int = 1
    group: int = 0
    """Ranks of a group; 0: all."""
    stride: int = 1
    """Distance of the members of a group."""
    compute_ns: int = 0
    """Compute before each communication; 0: none."""
    overlap: bool = False
    """The next compute does not wait for the communication."""
    concurrent: bool = False
    """Communications do not wait for one another."""
    seed: int = 0
    """Seed of the pattern `permutation`."""

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= MAX_WORLD:
            raise UsageError(f"{self.ranks:,} ranks", hint=f"1 to {MAX_WORLD:,}")
        if not self.sizes or min(self.sizes) < 1:
            raise UsageError("a size of 0 bytes is not valid", hint="--bytes 64MB")
        if self.repeat < 1 or self.stride < 1 or self.group < 0 or self.compute_ns < 0:
            raise UsageError("repeats and strides must be at least 1, groups and times at least 0")
        if self.overlap and not self.compute_ns:
            raise UsageError("nothing to overlap with", hint="--compute 1ms gives each communication a compute node")
        if self.group and self.ranks % (self.group * self.stride):
            problem = f"{self.ranks} ranks are not a whole number of groups of {self.group} at stride {self.stride}"
            raise UsageError(problem, hint=f"a multiple of {self.group * self.stride}")
        if self.stride > 1 and not self.group:
            raise UsageError("a stride needs groups", hint="--group 8 --stride 4")


def micro(pattern: str, options: MicroOptions) -> Job:
    """The job of a collective's name (`all_reduce`) or of a pattern of messages (`ring`, `shift:4`, `incast`)."""
    word, number = line(pattern.lower().replace("-", "_"), "pattern", "shift:4").cut(":")
    name, colon = word.text, number is not None
    if not colon and name.upper() in Collective.__members__ and Collective[name.upper()] in COLLECTIVES:
        return _collective(Collective[name.upper()], options)
    if name not in PATTERNS or (colon and name != "shift"):
        known = ", ".join([*(c.name.lower() for c in COLLECTIVES), *PATTERNS])
        raise UsageError(
            f"unknown pattern `{pattern}`", hint=f"known: {known}; `shift:4` sends to the rank 4 further on"
        )
    if options.group:
        raise UsageError("groups apply only to collectives", hint="leave out --group")
    if options.ranks < 2:
        raise UsageError(f"`{pattern}` needs at least two ranks")
    step = 1
    if number is not None:
        step = number.count(zero=True, most=9_999_999)
        if step % options.ranks == 0:
            raise number.wrong("a rank cannot send to itself")
    if name == "all_pairs" and options.ranks > MAX_ALL_PAIRS:
        raise UsageError(f"all_pairs on {options.ranks:,} ranks", hint=f"at most {MAX_ALL_PAIRS:,}")
    return job_of_roles(
        f"micro_{name}", PATTERNS[name](options, step), provenance={"tool": "etude generate micro", "pattern": pattern}
    )


def group_table(ranks: int, group: int, stride: int) -> tuple[Groups, NDArray[np.int64]]:
    """Groups of `group` ranks at a distance, and the group of each rank."""
    block, place = np.divmod(np.arange(ranks), group * stride)
    number = block * stride + place % stride
    order = np.argsort(number, kind="stable")
    count = ranks // group
    names = tuple(str(g) for g in range(count))
    start = np.arange(count + 1, dtype=np.int64) * group
    return Groups(names, start, order.astype(np.int32), np.ones(count, bool)), number


def _out_bytes(collective: Collective, size: int, members: int) -> int:
    if collective in (Collective.ALL_GATHER, Collective.GATHER):
        return size * members
    if collective in (Collective.REDUCE_SCATTER, Collective.REDUCE_SCATTER_BLOCK, Collective.SCATTER):
        return -(-size // members)
    return size


def _collective(collective: Collective, options: MicroOptions) -> Job:
    members = options.group or options.ranks
    label = "g" if options.group else None

    def communicate(b: TraceBuilder, after: list[int], size: int, k: int) -> list[int]:
        size = 0 if collective == Collective.BARRIER else size
        name = f"{collective.name.lower()} {k}"
        out = _out_bytes(collective, size, members)
        return [b.add(Kind.COLL, name, data=after, collective=collective, in_bytes=size, out_bytes=out, cpu=0,
                      group=label, step=k)]  # fmt: skip

    groups, number = group_table(options.ranks, members, options.stride)
    role = Role(
        trace=_program(options, communicate),
        ranks=np.arange(options.ranks),
        groups=number[:, None] if options.group else np.zeros((options.ranks, 0), np.int32),
        peers=np.zeros((options.ranks, 0), np.int64),
    )
    name = collective.name.lower()
    return job_of_roles(
        f"micro_{name}",
        [role],
        groups=groups if options.group else None,
        provenance={"tool": "etude generate micro", "pattern": name},
    )


Communicate = Callable[[TraceBuilder, list[int], int, int], list[int]]
"""Adds the communication of one round after the given nodes; returns the nodes that end it."""


def _program(options: MicroOptions, communicate: Communicate) -> Trace:
    """The rounds in sequence: compute if there is any, then communication."""
    b = TraceBuilder()
    compute: list[int] = []
    last: list[int] = []
    rounds = options.repeat * len(options.sizes)
    for k in range(rounds):
        after = [] if options.concurrent else last
        if options.compute_ns:
            before = compute if options.overlap else last or compute
            compute = [b.add(Kind.COMP, f"compute {k}", data=before, duration_ns=options.compute_ns, cpu=0, step=k)]
            after = [*compute, *after] if options.overlap else compute
        last = communicate(b, after, options.sizes[k % len(options.sizes)], k)
        if k == 0 and rounds * max(len(b), 0 if options.concurrent else len(last) ** 2) > MAX_EDGES:
            raise UsageError(
                f"{rounds:,} rounds of {len(last):,} messages per rank are too many", hint="use a smaller --repeat"
            )
    return b.build()


def _messages(options: MicroOptions, ranks: NDArray[np.int64], sends: NDArray[np.int64], receives: NDArray[np.int64], *,
              order: str = "both") -> Role:  # fmt: skip
    """A role whose ranks send to and receive from peers: one column of `sends` and `receives` for each message of a
    round, -1 is none. `order`: both at once, or one before the other."""
    to, of = sends.shape[1], receives.shape[1]

    def communicate(b: TraceBuilder, after: list[int], size: int, k: int) -> list[int]:
        def send(after: list[int]) -> list[int]:
            return [
                b.add(Kind.SEND, f"send {k}", data=after, dst=j, in_bytes=size, tag=k, cpu=0, step=k) for j in range(to)
            ]

        def receive(after: list[int]) -> list[int]:
            return [
                b.add(Kind.RECV, f"receive {k}", data=after, src=to + j, in_bytes=size, tag=k, cpu=0, step=k)
                for j in range(of)
            ]

        if order == "send first":
            return receive(send(after))
        if order == "receive first":
            return send(receive(after))
        return send(after) + receive(after)

    # The builder numbers peers as it meets them; the table's columns follow.
    trace = _program(options, communicate)
    met = [*range(to, to + of), *range(to)] if order == "receive first" else list(range(to + of))
    return Role(
        trace=trace,
        ranks=ranks,
        groups=np.zeros((len(ranks), 0), np.int32),
        peers=np.concatenate([sends, receives], 1)[:, met],
    )


def _none(rows: int) -> NDArray[np.int64]:
    return np.zeros((rows, 0), np.int64)


def _shift(options: MicroOptions, step: int) -> list[Role]:
    r = np.arange(options.ranks)[:, None]
    return [_messages(options, r[:, 0], (r + step) % options.ranks, (r - step) % options.ranks)]


def _neighbours(options: MicroOptions, step: int) -> list[Role]:
    r, n = np.arange(options.ranks)[:, None], options.ranks
    if n == 2:
        return _shift(options, 1)
    both = np.concatenate([(r + 1) % n, (r - 1) % n], 1)
    return [_messages(options, r[:, 0], both, both)]


def _ping_pong(options: MicroOptions, step: int) -> list[Role]:
    r = _even(options, "ping_pong")
    first, second = r[r % 2 == 0], r[r % 2 == 1]
    return [
        _messages(options, first, first[:, None] + 1, first[:, None] + 1, order="send first"),
        _messages(options, second, second[:, None] - 1, second[:, None] - 1, order="receive first"),
    ]


def _exchange(options: MicroOptions, step: int) -> list[Role]:
    r = _even(options, "exchange")
    return [_messages(options, r, (r ^ 1)[:, None], (r ^ 1)[:, None])]


def _bisection(options: MicroOptions, step: int) -> list[Role]:
    r = _even(options, "bisection")
    other = ((r + options.ranks // 2) % options.ranks)[:, None]
    return [_messages(options, r, other, other)]


def _even(options: MicroOptions, name: str) -> NDArray[np.int64]:
    if options.ranks % 2:
        raise UsageError(f"`{name}` pairs ranks, but {options.ranks} is odd")
    return np.arange(options.ranks)


def _incast(options: MicroOptions, step: int) -> list[Role]:
    others, zero = np.arange(1, options.ranks), np.zeros(1, np.int64)
    return [
        _messages(options, zero, _none(1), others[None, :]),
        _messages(options, others, np.zeros((len(others), 1), np.int64), _none(len(others))),
    ]


def _outcast(options: MicroOptions, step: int) -> list[Role]:
    others, zero = np.arange(1, options.ranks), np.zeros(1, np.int64)
    return [
        _messages(options, zero, others[None, :], _none(1)),
        _messages(options, others, _none(len(others)), np.zeros((len(others), 1), np.int64)),
    ]


def _chain(options: MicroOptions, step: int) -> list[Role]:
    """A pipeline: each rank forwards what it has received."""
    first, last = np.zeros(1, np.int64), np.array([options.ranks - 1])
    middle = np.arange(1, options.ranks - 1)
    roles = [
        _messages(options, first, first[:, None] + 1, _none(1)),
        _messages(options, last, _none(1), last[:, None] - 1),
    ]
    if len(middle):
        roles.append(_messages(options, middle, middle[:, None] + 1, middle[:, None] - 1, order="receive first"))
    return roles


def _permutation(options: MicroOptions, step: int) -> list[Role]:
    """One random cycle through all ranks, so that none sends to itself."""
    circle = np.random.default_rng(options.seed).permutation(options.ranks)
    to, of = np.empty(options.ranks, np.int64), np.empty(options.ranks, np.int64)
    to[circle], of[circle] = np.roll(circle, -1), np.roll(circle, 1)
    return [_messages(options, np.arange(options.ranks), to[:, None], of[:, None])]


def _all_pairs(options: MicroOptions, step: int) -> list[Role]:
    """Each rank to each other, beginning with the next: no two send to the same one at once."""
    r, offset = np.arange(options.ranks)[:, None], np.arange(1, options.ranks)[None, :]
    return [_messages(options, r[:, 0], (r + offset) % options.ranks, (r - offset) % options.ranks)]


PATTERNS: dict[str, Callable[[MicroOptions, int], Sequence[Role]]] = {
    "ring": _shift,
    "shift": _shift,
    "neighbours": _neighbours,
    "ping_pong": _ping_pong,
    "exchange": _exchange,
    "bisection": _bisection,
    "incast": _incast,
    "outcast": _outcast,
    "chain": _chain,
    "permutation": _permutation,
    "all_pairs": _all_pairs,
}
