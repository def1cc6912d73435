"""The size of the world survives files that do not mention all of its ranks."""

from dataclasses import replace
from pathlib import Path

import pytest

import chakra_pb as pb
import etude
from etude.model.build import TraceBuilder
from etude.model.diff import diff
from etude.model.job import Job, assemble
from etude.model.schema import Collective, Kind
from etude.store import chakra
from etude.store import json as json_store
from etude.surface.cli import main


def job_of(world: int, *, ranks: tuple[int, ...] = (0,), metadata: bytes = b"") -> Job:
    """Some ranks of a world, with one all-reduce of all ranks."""
    parts = []
    for rank in ranks:
        builder = TraceBuilder()
        builder.add(Kind.COLL, group="0", collective=Collective.ALL_REDUCE, in_bytes=64)
        parts.append(replace(builder.part(rank, {"0": list(range(world))}), metadata=metadata))
    return assemble("w", parts, world_size=world)


@pytest.mark.parametrize("store", [chakra, json_store])
@pytest.mark.parametrize("metadata", [b"", b"\x0a\x050.0.4"])
def test_a_rank_alone_knows_how_many_there_were(tmp_path: Path, store, metadata: bytes):
    job = job_of(8, metadata=metadata)
    store.write_job(job, tmp_path)
    back = etude.open(tmp_path)
    assert back.world_size == 8
    assert back.groups.ranks(0).tolist() == list(range(8))
    assert back.metadata == (metadata,)
    again = tmp_path / "again"
    again.mkdir()
    store.write_job(back, again)
    for file in tmp_path.glob("w.*"):
        assert (again / file.name).read_bytes() == file.read_bytes()


def test_the_official_schema_reads_it(tmp_path: Path):
    chakra.write_job(job_of(8), tmp_path)
    metadata, nodes = pb.read_messages(tmp_path / "w.0.et")
    assert [(a.name, a.int64_val) for a in metadata.attr] == [("world_size", 8)]
    assert len(nodes) == 1


def test_files_that_tell_by_themselves_say_nothing(tmp_path: Path):
    chakra.write_job(job_of(3, ranks=(0, 1, 2)), tmp_path)
    metadata, _ = pb.read_messages(tmp_path / "w.0.et")
    assert not metadata.attr


def test_an_attribute_that_was_there_stays(tmp_path: Path):
    """Of a file that Etude did not write: first, and not needed, since rank 7 is there."""
    said = b"\x12\x0e\x0a\x0aworld_size\x38\x08"
    metadata = said + b"\x12\x05\x0a\x03abc"
    kept = job_of(8, ranks=(0, 7), metadata=metadata)
    chakra.write_job(kept, tmp_path)
    assert etude.open(tmp_path).metadata == (metadata,)
    alone = tmp_path / "alone"
    alone.mkdir()
    chakra.write_job(job_of(8, metadata=metadata), alone)
    assert etude.open(alone).world_size == 8
    assert etude.open(alone).metadata == (metadata,)


@pytest.mark.parametrize(
    "world", [b"\x38\x00", b"\x38\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x38\x80\x80\x80\x80\x40"]
)
def test_a_world_that_cannot_be_is_only_an_attribute(tmp_path: Path, world: bytes):
    payload = b"\x0a\x0aworld_size" + world
    metadata = b"\x12" + bytes([len(payload)]) + payload
    chakra.write_job(job_of(1, metadata=metadata), tmp_path)
    back = etude.open(tmp_path)
    assert back.world_size == 1
    assert back.metadata == (metadata,)


@pytest.mark.parametrize("to", ["et", "json"])
def test_convert_keeps_it(tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str]):
    from etude.store import columns

    folder = tmp_path / "p"
    folder.mkdir()
    columns.write_job(job_of(8, ranks=(0, 2)), folder)
    assert main(["convert", str(folder), str(tmp_path / "out"), "--to", to]) == 0
    assert "not written" not in capsys.readouterr().err
    assert diff(etude.open(folder), etude.open(tmp_path / "out")) is None


def test_a_feeder_over_files_knows_it_too(tmp_path: Path):
    chakra.write_job(job_of(8), tmp_path)
    feed = etude.extend.open_feeder(tmp_path)
    assert list(feed.node(0, feed.next(0)).group) == list(range(8))
