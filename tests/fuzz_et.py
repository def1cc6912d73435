"""Damaged and irregular `.et` files against the codec, with protobuf as the judge.

    python tests/fuzz_et.py --cases 1000000 --seed 7

For every case the codec either refuses with an error of Etude's that names the file and a byte, or its result, written
again, equals what protobuf reads, message by message. What protobuf refuses must be refused, except that names which
are not UTF-8 may be kept as they are. No other exception, no runaway time or memory.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import resource
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import chakra_pb as pb
import strategies as wire

WHERE = "fuzz-case.et"


# ---- the codec, called only from here


def decode(data: bytes, max_bytes: int | None = None) -> Any:
    """Our columns; `max_bytes` bounds what a compressed file may grow to."""
    from etude.store import chakra

    limit = {} if max_bytes is None else {"max_bytes": max_bytes}
    return chakra.decode(np.frombuffer(data, np.uint8), where=WHERE, **limit)


def encode(decoded: Any) -> bytes:
    from etude.store import chakra

    return bytes(chakra.encode(decoded))


def refusal() -> type[Exception]:
    from etude.base.errors import EtudeError

    return EtudeError


@dataclass(frozen=True)
class Codec:
    decode: Callable[..., Any]
    encode: Callable[[Any], bytes]
    refusal: type[Exception]


def ours() -> Codec:
    return Codec(decode, encode, refusal())


# ---- the verdict

NAMES_A_BYTE = re.compile(r"(byte|offset)\D{0,12}\d")


class Failure(AssertionError):
    """A case on which the codec is wrong; the text holds the bytes."""


def _oracle(data: bytes) -> tuple[str, Any]:
    """How protobuf reads the case: `accepts`, `not utf-8` (with strings as bytes), or `refuses`."""
    try:
        return "accepts", pb.read_messages(data)
    except pb.Malformed as error:
        reason = error
    try:
        return "not utf-8", pb.read_messages(data, schema=pb.BYTES_SCHEMA)
    except pb.Malformed:
        return "refuses", reason


def check(data: bytes, codec: Codec, label: str = "") -> str:
    """`equal`, `refused` or `kept bytes`; raises Failure."""

    def failure(what: str) -> Failure:
        return Failure(f"{label}: {what}\ncase: bytes.fromhex({data[:4000].hex()!r})  # {len(data)} bytes")

    verdict, expected = _oracle(data)
    try:
        decoded = codec.decode(data)
    except codec.refusal as error:
        if verdict == "accepts":
            raise failure(f"protobuf reads it, we refuse: {error}") from error
        _check_text(str(error), data, failure)
        return "refused"
    except Exception as error:
        raise failure(f"protobuf {verdict}, decode raised {type(error).__name__}: {error}") from error
    if verdict == "refuses":
        raise failure(f"we read what protobuf refuses: {expected}")
    try:
        again = codec.encode(decoded)
    except Exception as error:
        raise failure(f"encode raised {type(error).__name__}: {error}") from error
    schema = pb.SCHEMA if verdict == "accepts" else pb.BYTES_SCHEMA
    try:
        difference = pb.difference(expected, pb.read_messages(again, schema=schema))
    except pb.Malformed as error:
        raise failure(f"what we wrote is malformed: {error}\nwritten: {again[:4000].hex()}") from error
    if difference:
        raise failure(difference)
    return "equal" if verdict == "accepts" else "kept bytes"


def _check_text(text: str, data: bytes, failure: Callable[[str], Failure]) -> None:
    if WHERE not in text:
        raise failure(f"the error does not name the file: {text}")
    # inside a gzip stream that is broken itself, no byte of the content is to blame
    if not data.startswith(pb.GZIP_MAGIC) and not NAMES_A_BYTE.search(text):
        raise failure(f"the error does not name a byte: {text}")


# ---- seeds: small valid files


def seeds() -> list[bytes]:
    """From 8 bytes to about 1 kB, every construct of the format at least once."""
    a, node, block, number, text = wire.attribute, wire.node, wire.block, wire.number, wire.text
    version = wire.metadata("1.0.0")
    io = text(1, "[[6, 7, 0, 32, 2, 'cuda:0']]") + text(2, "[[4, 8]]") + text(3, "['Tensor(float)']")
    torch = [a(n, "int64", v) for n, v in (("rf_id", 9), ("fw_parent", 0), ("seq_id", -1), ("scope", 0), ("tid", 1))]
    torch += [a("fw_tid", "int64", 0), a("op_schema", "string", "aten::mm(Tensor a) -> Tensor")]
    torch += [a("is_cpu_op", "bool", True), a("stream", "int64", 0)]
    comm = [a("is_cpu_op", "int32", 0), a("comm_type", "int64", 12), a("comm_size", "uint64", 1 << 40)]
    comm += [a("pg_name", "string", "21"), a("involved_dim", "bool_list", [True, False]), a("outputs", "", None)]
    p2p = [a("comm_src", "int32", 0), a("comm_dst", "int32", 1), a("comm_tag", "int32", -1), a("comm_size", "int64", 5)]
    values = {"double": -0.0, "float": 1.5, "bool": True, "string": "é", "bytes": b"\xff"}
    kinds = [a(k, k, values.get(k, 3)) for k in wire.KINDS]
    lists = [a(k, f"{k}_list", [values.get(k, 200)] * 2) for k in wire.KINDS]
    group = wire.tag(15, 3) + number(1, 5) + wire.tag(2, 3) + wire.tag(2, 4) + wire.tag(15, 4)
    odd_attribute = text(2, "doc") + block(6, wire.list_body("float", [1.0])) + number(9, 4) + text(1, "x") + group
    twice = text(1, "y") + block(10, wire.packed(1, [1, 2])) + block(10, number(1, 3) + number(9, 1)) + number(40, 7)
    odd = number(7, 3, 2) + number(5, 8) + block(10, odd_attribute) + wire.packed(5, [9, wire.U64]) + number(1, 4)
    odd += block(8, text(2, "s")) + block(8, text(1, "v") + number(9, 1)) + block(10, twice) + group + number(1, 5)
    ns = node(7, "k", 4, micros=(5, 2), attributes=[a("start_ns", "int64", 5400), a("duration_ns", "int64", 2_600)])
    return [
        wire.stream([version]),
        wire.stream([b"", b"", node(1, "after the empty one", 4), b""]),
        wire.stream([version, node(1, "aten::mm", 4, [0], [0, 7], (0, 12), (io, io), torch)]),
        wire.stream(
            [version, node(wire.U64, "ar", 7, attributes=comm), node(2, "s", 5, (), [wire.U64], attributes=p2p)]
        ),
        wire.stream([version, node(3, "kinds", 1, attributes=kinds), node(4, "lists", 1, attributes=lists)]),
        wire.stream([wire.metadata("", [a("pid", "uint64", 1)]) + number(9, 1), odd, node(6, type=-1, io=(b"", None))]),
        wire.stream([version, ns, node(8, "m", 2, attributes=[a("tensor_size", "uint64", 64)]), node(8, "same id")]),
    ]


# ---- damage


@dataclass
class Field:
    """One field of a message: `body` is a list of fields where the schema has a message, else the bytes behind the tag
    (behind the length for wire type 2)."""

    number: int
    wire: int
    body: bytes | list[Field]
    length: bytes | None = None  # written in place of the true one


INNER: dict[str, dict[int, str]] = {
    "metadata": {2: "attribute"},
    "node": {8: "io", 9: "io", 10: "attribute"},
    "attribute": {n + 1: "list" for n in wire.SCALARS},
    "io": {},
    "list": {},
}


def parse(data: bytes, kind: str) -> list[Field]:
    """The fields of a valid message."""
    fields, at = [], 0
    while at < len(data):
        key, at = pb.read_varint(data, at)
        number, form = key >> 3, key & 7
        body: bytes | list[Field] = b""
        if form == wire.LENGTH:
            size, at = pb.read_varint(data, at)
            body = data[at : at + size]
            at += size
            if number in INNER[kind]:
                body = parse(body, INNER[kind][number])
        elif form == wire.VARINT:
            start = at
            _, at = pb.read_varint(data, at)
            body = data[start:at]
        elif form in (wire.FIXED32, wire.FIXED64):
            size = 4 if form == wire.FIXED32 else 8
            body = data[at : at + size]
            at += size
        fields.append(Field(number, form, body))  # the ends of groups are fields without a body
    return fields


def unparse(fields: Sequence[Field]) -> bytes:
    out = []
    for f in fields:
        body = f.body if isinstance(f.body, bytes) else unparse(f.body)
        length = (f.length if f.length is not None else wire.varint(len(body))) if f.wire == wire.LENGTH else b""
        out += [wire.varint(f.number << 3 | f.wire), length, body]
    return b"".join(out)


ABSURD = [10 << 30, 1 << 31, (1 << 31) - 1, (1 << 32) - 1, 1 << 32, 1 << 62, 1 << 63, (1 << 64) - 1, 1 << 20, 200]
NOT_UTF8 = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"ab\xe2\x82", b"\x80"]
VARINTS = [b"\x80" * 9 + b"\x01", b"\x80" * 9 + b"\x7f", b"\x80" * 10 + b"\x01", b"\xff" * 10, b"\x81\x80\x00", b"\x80"]
FOREIGN = [
    b'{"schema": "1.0.3-chakra.0.0.4", "pid": 1, "nodes": []}',
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR",
    b"PK\x03\x04\x14\x00\x00\x00",
    b"PAR1\x15\x04\x15",
    b"\x7fELF\x02\x01\x01",
    b"MODEL_PARALLEL\n3\nlayer1 -1 5 NONE 0\n",
    b"\x28\xb5\x2f\xfd\x04\x00",
    b"\n",
    b"\x00" * 300,
    b"\xff" * 300,
    b"\x80" * 300,
    "ключ: значение\n".encode() * 3,
]


def _absurd(rng: random.Random, true: int) -> bytes:
    return rng.choice(
        [wire.varint(rng.choice(ABSURD)), wire.varint(true + rng.choice([-1, 1, 2])), wire.varint(true, 3), *VARINTS]
    )


def _damage(rng: random.Random, fields: list[Field]) -> None:
    """One change to a message or, by chance, to one inside it."""
    inner = [f.body for f in fields if isinstance(f.body, list)]
    if inner and rng.random() < 0.7:
        return _damage(rng, rng.choice(inner))
    at = rng.randrange(len(fields)) if fields else 0
    what = rng.randrange(12) if fields else 8 + rng.randrange(3)
    if what == 0:
        rng.shuffle(fields)
    elif what == 1:
        fields.append(replace(fields[at]))
    elif what == 2:
        del fields[at]
    elif what == 3:
        fields[at].number = rng.choice([0, 1, 2, 3, 4, 5, 8, 10, 11, 30, 33, 1 << 20, wire.MAX_FIELD, 1 << 29, 1 << 40])
    elif what == 4:
        fields[at].wire = rng.randrange(8)
    elif what == 5:
        fields[at].length = _absurd(rng, 5)
    elif what == 6 and fields[at].wire == wire.VARINT:
        fields[at].body = rng.choice([*VARINTS, wire.varint(rng.getrandbits(64)), wire.varint(rng.getrandbits(20))])
    elif what == 7 and isinstance(fields[at].body, bytes):
        fields[at].body = rng.choice([*NOT_UTF8, rng.randbytes(rng.randrange(12)), b""])
    elif what == 8:
        form = rng.choice([wire.VARINT, wire.FIXED64, wire.LENGTH, wire.FIXED32])
        raw = {0: wire.varint(rng.getrandbits(64)), 1: bytes(8), 2: rng.randbytes(rng.randrange(9)), 5: bytes(4)}[form]
        fields.insert(at, Field(rng.choice([*range(1, 35), 99]), form, raw))
    elif what == 9:
        depth = rng.choice([1, 2, 3, 40, 95, 110, 500])
        ends = [*range(depth, 0, -1)] if rng.random() < 0.8 else [*range(1, depth + 1)]
        start, group = rng.choice([1, 15, 40]), [wire.tag(n, wire.GROUP) for n in range(1, depth + 1)]
        raw = b"".join(group) + b"".join(wire.tag(n, wire.END_GROUP) for n in ends)
        fields.insert(at, Field(start, wire.GROUP, raw + (wire.tag(start, 4) if rng.random() < 0.9 else b"")))
    elif what == 10:
        fields.insert(at, Field(rng.randrange(1, 34), rng.choice([wire.GROUP, wire.END_GROUP]), b""))
    elif what == 11 and fields[at].wire == wire.LENGTH:
        body = fields[at].body
        raw = body if isinstance(body, bytes) else unparse(body)
        fields[at].body = raw[: rng.randrange(len(raw) + 1)]


def restructured(rng: random.Random, seed: bytes) -> bytes:
    """A file whose messages were changed as messages, so that the lengths around the change fit."""
    bodies = list(pb.split(seed))
    messages = [parse(m, "node" if k else "metadata") for k, m in enumerate(bodies)]
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        _damage(rng, rng.choice(messages))
    return wire.stream([unparse(m) for m in messages])


def flipped(rng: random.Random, seed: bytes) -> bytes:
    out = bytearray(seed)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        out[rng.randrange(len(out))] = rng.choice([0, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(out)


def spliced(rng: random.Random, seed: bytes) -> bytes:
    """Bytes put in, taken out, or an absurd length in the place of any byte."""
    at, span = rng.randrange(len(seed) + 1), rng.randrange(4)
    put = rng.choice([b"", rng.randbytes(rng.randrange(1, 20)), _absurd(rng, rng.randrange(200)), rng.choice(NOT_UTF8)])
    return seed[:at] + put + seed[at + span :]


def garbage(rng: random.Random, seed: bytes) -> bytes:
    noise = rng.randbytes(rng.randrange(200)) if rng.random() < 0.5 else bytes(rng.choices(range(24), k=60))
    return rng.choice([noise, seed + noise, wire.stream([b"", noise, noise[:9]]), rng.choice(FOREIGN), b""])


def zipped(rng: random.Random, seed: bytes) -> bytes:
    squeezed = gzip.compress(seed, mtime=0)
    kind = rng.randrange(4)
    if kind == 0:
        return squeezed
    if kind == 1:
        return squeezed[: rng.randrange(2, len(squeezed))]
    if kind == 2:
        return squeezed[:2] + flipped(rng, squeezed[2:])
    half = rng.randrange(len(seed))
    return gzip.compress(seed[:half], mtime=0) + gzip.compress(restructured(rng, seed)[half:], mtime=0)


DAMAGE = [(restructured, 10), (flipped, 5), (spliced, 3), (garbage, 1), (zipped, 1)]


def cases(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """`count` files with a label: every seed cut at every byte, then seeded damage of all kinds."""
    rng, files, made = random.Random(seed), seeds(), 0
    for k, data in enumerate(files):
        for cut in range(len(data) + 1):
            if made == count:
                return
            yield f"seed file {k} cut at {cut}", data[:cut]
            made += 1
    makers, weights = zip(*DAMAGE, strict=True)
    while made < count:
        (maker,) = rng.choices(makers, weights)
        yield f"case {made} of seed {seed}, {maker.__name__}", maker(rng, rng.choice(files))
        made += 1


# ---- bounds


@contextmanager
def address_space(extra_bytes: int) -> Iterator[None]:
    """At most so much more memory may be asked for, even if it is never touched."""
    status = Path("/proc/self/statm")
    if not status.exists():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(status.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + extra_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def bombs() -> dict[str, bytes]:
    """Small gzip files that would grow to 4 GiB: of many members, and of one."""
    zeros = bytes(16 << 20)
    member = gzip.compress(zeros, 6, mtime=0)
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    run = deflate.compress(zeros) + deflate.flush(zlib.Z_FULL_FLUSH)  # a block that can be repeated
    return {
        "members": member * 256,
        "one member": gzip.compress(b"", mtime=0)[:10] + run * 256 + b"\x03\x00" + bytes(8),
    }


def check_bomb(data: bytes, codec: Codec, max_bytes: int, seconds: float = 5.0) -> None:
    """Must be refused, by name, at about `max_bytes`."""
    start = time.perf_counter()
    try:
        with address_space((256 << 20) + 16 * max_bytes):
            codec.decode(data, max_bytes=max_bytes)
    except codec.refusal as error:
        if WHERE not in str(error):
            raise Failure(f"the error does not name the file: {error}") from error
    else:
        raise Failure(f"a gzip file grew past max_bytes={max_bytes} and was read")
    spent = time.perf_counter() - start
    if spent > seconds:
        raise Failure(f"refusing a gzip bomb took {spent:.1f} s")


@dataclass
class Report:
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, str] = (0.0, "")
    peak_growth_bytes: int = 0


def run(count: int, seed: int, codec: Codec, *, case_seconds: float = 60.0, memory_bytes: int = 3 << 29) -> Report:
    """Checks `count` cases; raises Failure on the first that is wrong, slow or hungry."""
    for k, data in enumerate(seeds()):  # compiles
        check(data, codec, f"seed file {k}")
    report = Report()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with address_space(memory_bytes):
        for label, data in cases(count, seed):
            start = time.perf_counter()
            report.outcomes[check(data, codec, label)] += 1
            spent = time.perf_counter() - start
            if spent > report.slowest[0]:
                report.slowest = (spent, label)
            if spent > case_seconds:
                raise Failure(f"{label}: took {spent:.1f} s\ncase: bytes.fromhex({data[:4000].hex()!r})")
    # kilobytes, except on macOS
    unit = 1 if sys.platform == "darwin" else 1024
    report.peak_growth_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit
    return report


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    start = time.perf_counter()
    report = run(arguments.cases, arguments.seed, ours())
    for name, bomb in bombs().items():
        check_bomb(bomb, ours(), 8 << 20)
        report.outcomes[f"gzip bomb of {name} refused"] += 1
    for outcome, count in report.outcomes.most_common():
        print(f"{count:>10,}  {outcome}")
    print(f"{time.perf_counter() - start:.1f} s, slowest {report.slowest[0] * 1000:.1f} ms ({report.slowest[1]}),")
    print(f"peak memory grew by {report.peak_growth_bytes / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
