"""Damaged `.et` files: refused with a place, or read as protobuf reads them."""

from __future__ import annotations

import re
from typing import Any

import pytest

import chakra_pb as pb
import fuzz_et


class Refused(Exception):
    pass


def _decode(data: bytes, max_bytes: int | None = None) -> Any:
    try:
        return pb.read_messages(data)
    except pb.Malformed as error:
        raise Refused(f"{fuzz_et.WHERE}: byte 0: {error}") from error


TWIN = fuzz_et.Codec(_decode, lambda decoded: pb.write_messages(*decoded), Refused)


@pytest.fixture(scope="module")
def codec() -> fuzz_et.Codec:
    pytest.importorskip("etude.store.chakra")
    return fuzz_et.ours()


def test_damaged_files(codec: fuzz_et.Codec) -> None:
    report = fuzz_et.run(3_000, seed=1, codec=codec)
    assert report.outcomes.total() == 3_000
    assert report.peak_growth_bytes < 300 << 20


@pytest.mark.parametrize("kind", ["members", "one member"])
def test_gzip_bombs(codec: fuzz_et.Codec, kind: str) -> None:
    fuzz_et.check_bomb(fuzz_et.bombs()[kind], codec, max_bytes=8 << 20)


# ---- the harness itself


def test_harness_accepts_protobuf_and_has_cases_of_both_kinds() -> None:
    outcomes = fuzz_et.run(3_000, seed=2, codec=TWIN).outcomes
    assert outcomes["equal"] > 500 and outcomes["refused"] > 500


def _forget_unknown(decoded: Any) -> bytes:
    for message in (decoded[0], *decoded[1]):
        message.DiscardUnknownFields()
    return pb.write_messages(*decoded)


def _forget_node(decoded: Any) -> bytes:
    return pb.write_messages(decoded[0], decoded[1][:-1])


def _forget_presence(decoded: Any) -> bytes:
    for node in decoded[1]:
        if not node.inputs.ByteSize():
            node.ClearField("inputs")
    return pb.write_messages(*decoded)


@pytest.mark.parametrize("encode", [_forget_unknown, _forget_node, _forget_presence])
def test_harness_catches_loss(encode: Any) -> None:
    copy = lambda data, max_bytes=None: _decode(data)  # noqa: E731
    with pytest.raises(fuzz_et.Failure, match="differs|against"):
        fuzz_et.run(3_000, seed=2, codec=fuzz_et.Codec(copy, encode, Refused))


def _nowhere(data: bytes) -> Any:
    try:
        return pb.read_messages(data)
    except pb.Malformed as error:
        raise Refused(re.sub(r"byte \d+", "", str(error))) from error


@pytest.mark.parametrize("decode", [pb.read_messages, _nowhere, lambda data: pb.read_messages(fuzz_et.seeds()[0])])
def test_harness_catches_foreign_errors_and_guesses(decode: Any) -> None:
    with pytest.raises(fuzz_et.Failure):
        fuzz_et.run(3_000, seed=2, codec=fuzz_et.Codec(decode, TWIN.encode, Refused))
