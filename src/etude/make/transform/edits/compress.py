"""compress: fewer bytes on the wire, at the cost of encoding and decoding them.

With S raw bytes of a message and T(S) its time, coding `around` it takes

    2 fixed + S/encode + T(S/r) + S/decode,      1/r = 1/ratio + overhead

An all-gather of p members encodes its own part and decodes those of the others; an all-to-all codes all but its own
part. A reduction cannot be coded around, since sums of codes are not codes: it is coded `inside`, where every hop
decodes, adds and encodes. Inside, chunks of `chunk` raw bytes go through encoder, link and decoder as a pipeline, each
on a lane of its own: with n of them and times x, y, z of a chunk, and a that of the first bit,

    a + x + y + z + (n - 1) max(x, y, z)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.base.grammar import line
from etude.kernels.arrays import F64, I64, Bool
from etude.make.transform.edits.definition import Definition, Here, Parameter, choice, number, rate, rounded, size, time
from etude.make.transform.rewrite.rewriting import AFTER, BEFORE, compute_stream, free_stream
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.trace import Trace

REDUCING = (Collective.ALL_REDUCE, Collective.REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE_SCATTER_BLOCK)
GATHERING = (Collective.ALL_GATHER, Collective.GATHER)
WEIGHTS = (*GATHERING, Collective.BROADCAST, Collective.SCATTER)
CLASSES = ("weights", "gradients", "activations", "kv")
_CACHE = "cache"
"""Module of messages that carry keys and values to their reader, as `etude generate --disaggregate` writes it."""
_COPIES = ("dp", "edp", "shard", "eshard", "replica", "ereplica", "fsdp", "hsdp")
"""Axes over which a model is replicated, so that weights and gradients are exchanged."""


def rewrite(
    here: Here, ratio: dict[str, float], encode: float, decode: float, fixed: int, overhead: float, where: str,
    chunk: int, lane: str, when: str, link: float,
) -> None:  # fmt: skip
    rows = here.rows[_coded(here, here.rows)]
    part = _wire_part(here, rows, ratio, overhead)
    free = np.isinf(encode) and np.isinf(decode) and not fixed
    rows, part = rows[(part != 1) | (not free)], part[(part != 1) | (not free)]
    inside = (
        np.isin(here.trace.collective[rows], REDUCING) if where == "auto" else np.full(len(rows), where == "inside")
    )
    if where == "around" and np.isin(here.trace.collective[rows], REDUCING).any():
        problem = "a reduction cannot be coded around: coded values cannot be summed"
        raise UsageError(problem, where="edit `compress`", hint="where=inside, or collective=all_gather,all_to_all")
    calls = _calls(here, rows, part, (encode, decode, fixed), np.where(inside, chunk, 0))
    before_ns, behind_ns = _exposed(here, calls, link)
    if when == "pays":
        raw_ns, wire_ns = _times(here, calls.rows, calls.raw, link), _times(here, calls.rows, calls.wire, link)
        codec_ns = np.ceil(before_ns - 1e-6) + np.ceil(behind_ns - 1e-6)
        pays = codec_ns + wire_ns < raw_ns
        if here.exposed_ns is not None:  # what holds the compute must bring more than it costs there
            saved = np.minimum(raw_ns - wire_ns, here.exposed_ns[calls.rows])
            pays &= inside | (lane == "own") | (codec_ns < saved)
        calls, inside, before_ns, behind_ns = calls.take(pays), inside[pays], before_ns[pays], behind_ns[pays]
    _resize(here, calls)
    kind, own = here.trace.kind[calls.rows], free_stream(here.trace)
    inside = inside | (lane == "own")
    stream = np.where(inside, own, compute_stream(here.trace))
    _before(here, calls.rows, np.where(kind == Kind.RECV, 0, before_ns), stream)
    _behind(here, calls.rows, np.where(kind == Kind.SEND, 0, behind_ns), np.where(inside, own + 1, stream))


class CodedCalls(NamedTuple):
    """Communication to be coded: the uncoded part, and the part on the wire."""

    rows: I64
    raw: I64
    wire: I64
    encode_ns: F64
    """For all its raw bytes. The sender of a message encodes and the receiver decodes; both know both times."""
    decode_ns: F64
    chunks: I64

    def take(self, which: Bool) -> CodedCalls:
        return CodedCalls(*(column[which] for column in self))  # type: ignore[arg-type]


def _coded(here: Here, rows: I64) -> Bool:
    """Communication that is known to send something; a barrier sends nothing."""
    trace = here.trace
    sent = _raw(trace, rows)
    known = (sent != UNKNOWN) & (sent > 0)
    if (sent == UNKNOWN).any():
        here.note(f"{int((sent == UNKNOWN).sum()):,} selected calls have no known size and are not changed")
    return known & ~((trace.kind[rows] == Kind.COLL) & (here.members(rows) == 1))


def _raw(trace: Trace, rows: I64) -> I64:
    return np.where(trace.in_bytes[rows] == UNKNOWN, trace.out_bytes[rows], trace.in_bytes[rows])


def _wire_part(here: Here, rows: I64, ratio: dict[str, float], overhead: float) -> F64:
    """Bytes on the wire per raw byte."""
    if set(ratio) == {""}:
        each = np.full(len(rows), ratio[""])
    else:
        klass = tensor_classes(here, rows)
        each = np.array([ratio.get(name, 1.0) for name in CLASSES])[klass]
    found: F64 = 1 / each + overhead
    if (found > 1).any():
        here.note(f"{int((found > 1).sum()):,} calls have more bytes coded than raw")
    return found


def tensor_classes(here: Here, rows: I64) -> I64:
    """Position in CLASSES of the payload: over copies of a model, gathers carry weights and reductions gradients;
    messages of a cache carry keys and values, and everything else activations."""
    trace = here.trace
    codes, words = trace.coded("module", rows)
    of_cache = np.array([*(_CACHE in word.split(".") for word in words), False])[codes]
    over_copies = [any(name.partition(".")[0] in _COPIES for name in names) for names in here.groups]
    mine = np.array([*over_copies, False])[trace.group[rows]] & (trace.kind[rows] == Kind.COLL)
    reduces = np.isin(trace.collective[rows], REDUCING)
    found = np.where(mine & reduces, 1, np.where(mine & np.isin(trace.collective[rows], WEIGHTS), 0, 2))
    return np.where(of_cache & (trace.kind[rows] != Kind.COLL), CLASSES.index("kv"), found)


def _calls(here: Here, rows: I64, part: F64, codec: tuple[float, float, int], chunk: I64) -> CodedCalls:
    encode, decode, fixed = codec
    trace, raw, p = here.trace, _raw(here.trace, rows), here.members(rows).astype(np.float64)
    what = trace.collective[rows]
    p = np.maximum(p, 1)
    sent, got = raw.astype(np.float64), raw.astype(np.float64)
    others = (p - 1) / p
    gathers, reduces = np.isin(what, GATHERING), np.isin(what, REDUCING)
    got = np.where(gathers, raw * (p - 1), got)
    exchanged = what == int(Collective.ALL_TO_ALL)
    out = np.where(trace.out_bytes[rows] == UNKNOWN, raw, trace.out_bytes[rows])
    sent, got = np.where(exchanged, raw * others, sent), np.where(exchanged, out * others, got)
    sent, got = np.where(reduces, raw * others, sent), np.where(reduces, raw * others, got)
    whole = what == int(Collective.ALL_REDUCE)  # reduced, then gathered: each part is encoded once more
    sent, got = np.where(whole, raw, sent), np.where(whole, 2 * raw * others, got)
    encode_ns, decode_ns = fixed + sent / encode, fixed + got / decode
    chunks = np.where(chunk > 0, -(-raw // np.maximum(chunk, 1)), 1)
    return CodedCalls(rows, raw, rounded(raw * part), encode_ns, decode_ns, np.maximum(chunks, 1))


def _exposed(here: Here, calls: CodedCalls, link: float) -> tuple[F64, F64]:
    """Time before and after the wire: of the first chunk, and of the last one with the codec's backlog."""
    first, last = calls.encode_ns / calls.chunks, calls.decode_ns / calls.chunks
    many = calls.chunks > 1
    if many.any():
        some = calls.take(many)
        slowest = (some.chunks - 1) * np.maximum(first[many], last[many])
        one, whole = (_times(here, some.rows, sent, link) for sent in (some.wire // some.chunks, some.wire))
        last[many] += np.maximum(0.0, slowest + one - whole)
    return first, last


def _times(here: Here, rows: I64, sent: I64, link: float) -> F64:
    if here.system is not None:
        return here.time_ns(rows, sent).astype(np.float64)
    here.note(f"no system is given: calls are judged by links of {link:g} GB/s without latency")
    p, what = here.members(rows), here.trace.collective[rows]
    part = np.where(np.isin(what, GATHERING), p - 1.0, 1.0)
    part = np.where(np.isin(what, (*REDUCING, Collective.ALL_TO_ALL)), (p - 1) / np.maximum(p, 1), part)
    part = np.where(what == int(Collective.ALL_REDUCE), 2 * part, part)
    found: F64 = sent * part / link
    return found


def _resize(here: Here, calls: CodedCalls) -> None:
    """Bytes on the wire; a recorded time was for the raw bytes, and is unknown for these."""
    trace, rows, made = here.trace, calls.rows, here.made
    for name in ("in_bytes", "out_bytes"):
        old = getattr(trace, name)[rows]
        part = calls.wire / calls.raw
        made.set(name, rows, np.where(old == UNKNOWN, UNKNOWN, rounded(np.where(old == UNKNOWN, 0, old) * part)))
    changed = rows[calls.wire != calls.raw]
    if (trace.duration_ns[changed] != UNKNOWN).any():
        made.set("duration_ns", changed, UNKNOWN)


def _before(here: Here, rows: I64, ns: F64, stream: I64) -> None:
    """Adds a node that encodes before each row with something to do."""
    rows, ns, stream = rows[ns > 0], ns[ns > 0], stream[ns > 0]
    if len(rows):
        encode = _work(here, rows, BEFORE, "encode", ns, stream)
        here.made.enter(rows, encode)
        here.made.wait(rows, encode)


def _behind(here: Here, rows: I64, ns: F64, stream: I64) -> None:
    rows, ns, stream = rows[ns > 0], ns[ns > 0], stream[ns > 0]
    if len(rows):
        decode = _work(here, rows, AFTER, "decode", ns, stream)
        here.made.leave(rows, decode)
        here.made.wait(decode, rows)


def _work(here: Here, rows: I64, place: int, name: str, ns: F64, stream: I64) -> I64:
    """Compute nodes of a codec: on the host if the communication is, else on a stream."""
    on = np.where(here.trace.cpu[rows] == 1, UNKNOWN, stream)
    cost = rounded(ns, up=True)
    return here.made.add(rows, place, name, kind=int(Kind.COMP), duration_ns=cost, stream=on)


def _ratio(text: str) -> dict[str, float]:
    """`1.35`, or `weights:1.4,gradients:1.35`."""
    read, found = number(0, above=True), dict[str, float]()
    for part in line(text, "").split(","):
        name, value = part.cut(":", last=True)
        key = name.choice(CLASSES, "class of tensors") if value is not None else ""
        if key in found:
            raise part.wrong(f"`{key}` is given twice" if key else "two ratios are given")
        found[key] = read((value or part).text)
    if "" in found and len(found) > 1:
        raise UsageError("one ratio for all, or one for each class of tensors")
    return found


EDIT = Definition(
    doc="fewer bytes on the wire, at the cost of encoding and decoding them",
    cannot="whether real tensors reach the ratio, and the effect of a lossy code on accuracy",
    parameters={
        "ratio": Parameter(read=_ratio, doc="raw bytes over coded bytes: 1.35, or weights:1.4,gradients:1.35"),
        "encode": Parameter(read=rate, default="inf", doc="raw bytes per second that are encoded"),
        "decode": Parameter(read=rate, default="inf", doc="raw bytes per second that are decoded"),
        "fixed": Parameter(read=time, default="0", doc="fixed time of each encoding and each decoding"),
        "overhead": Parameter(read=number(), default="0", doc="additional coded bytes per raw byte: scales"),
        "where": Parameter(
            read=choice("auto", "around", "inside"),
            default="auto",
            doc="around the call, or inside its steps; auto: inside reductions",
        ),
        "chunk": Parameter(read=size, default="0", doc="raw bytes of a chunk inside a call; 0: all in one"),
        "lane": Parameter(
            read=choice("compute", "own"),
            default="compute",
            doc="stream of codecs around a call: the compute stream, or their own",
        ),
        "when": Parameter(read=choice("always", "pays"), default="always", doc="pays: only calls that become faster"),
        "link": Parameter(read=rate, default="50GB/s", doc="bandwidth used to judge calls without a system"),
    },
    selects="communication",
    rewrite=rewrite,
    timed=True,
    machine=lambda *, when, chunk, **_: when == "pays" or chunk > 0,
)
