"""`.et` files through our columns and back are, to protobuf, the same messages."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

import chakra_pb as pb
import et_files
import fuzz_et
import strategies

FROM_EACH_ARCHIVE = 3  # ranks differ little; an archive holds up to 1,024
ENDINGS = (".et", ".et.gz")


@pytest.fixture(scope="module")
def codec() -> fuzz_et.Codec:
    pytest.importorskip("etude.store.chakra")
    return fuzz_et.ours()


def assert_comes_back(data: bytes, codec: fuzz_et.Codec, label: str = "") -> None:
    again = codec.encode(codec.decode(data))
    difference = pb.difference(pb.read_messages(data), pb.read_messages(again))
    assert not difference, f"{label}: {difference}"


def distinct_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every trace under a folder once, however many ranks hold the same bytes."""
    seen: set[bytes] = set()
    for path in sorted(folder.rglob("*")):
        if path.name.endswith(ENDINGS) and (data := path.read_bytes()) not in seen:
            seen.add(data)
            yield str(path.relative_to(folder)), data


def archived_files(folder: Path, per_archive: int = FROM_EACH_ARCHIVE) -> Iterator[tuple[str, bytes]]:
    """The first traces of every archive, all of the small ones."""
    for path in sorted([*folder.rglob("*.tar.gz"), *folder.rglob("*.tar.xz")]):
        with tarfile.open(path) as archive:
            left = 1000 if path.stat().st_size < 5_000 else per_archive
            for member in archive:
                stored = archive.extractfile(member) if member.name.endswith(ENDINGS) else None
                if stored is None:
                    continue
                yield f"{path.name}:{member.name}", stored.read()
                left -= 1
                if not left:
                    break


def test_real_files_come_back(shared: Path, codec: fuzz_et.Codec) -> None:
    count = 0
    for label, data in distinct_files(shared):
        assert_comes_back(data, codec, label)
        count += 1
    assert count > 0


def test_archived_files_come_back(shared: Path, codec: fuzz_et.Codec) -> None:
    count = 0
    for label, data in archived_files(shared):
        assert_comes_back(data, codec, label)
        count += 1
    assert count > 0


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=strategies.et_files())
def test_any_file_comes_back(codec: fuzz_et.Codec, data: bytes) -> None:
    assert_comes_back(data, codec)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=strategies.plain_files())
def test_plain_files_come_back(codec: fuzz_et.Codec, data: bytes) -> None:
    assert_comes_back(data, codec)


def test_seed_files_come_back(codec: fuzz_et.Codec) -> None:
    for k, data in enumerate(fuzz_et.seeds()):
        assert_comes_back(data, codec, f"seed file {k}")


@pytest.mark.parametrize("kind", ["pytorch", "stg"])
def test_benchmark_files_come_back(kind: str, codec: fuzz_et.Codec, tmp_path: Path) -> None:
    et_files.MAKERS[kind](tmp_path / "t.et", 2_000)
    assert_comes_back((tmp_path / "t.et").read_bytes(), codec, kind)


# ---- the oracle itself


def test_schema_has_the_public_numbers() -> None:
    numbers = {f.name: f.number for f in pb.Node.DESCRIPTOR.fields}
    assert list(numbers.values()) == list(range(1, 11)) and numbers["attr"] == 10
    assert len(pb.VALUE_KINDS) == 30 and pb.Attribute.DESCRIPTOR.fields_by_name["bytes_list"].number == 32
    for field, (name, _, _) in strategies.SCALARS.items():
        assert pb.Attribute.DESCRIPTOR.fields_by_number[field].name == f"{name}_val"
        assert pb.Attribute.DESCRIPTOR.fields_by_number[field + 1].name == f"{name}_list"


def test_messages_by_hand() -> None:
    # the official generator's metadata, then a node with id 1, name `a`, type COMP, data_deps 2 and 300
    data = bytes.fromhex("07 0a05312e302e30  0c 0801 120161 1804 2a0302ac02 00")
    metadata, nodes = pb.read_messages(data)
    assert metadata.version == "1.0.0" and len(nodes) == 2
    assert (nodes[0].id, nodes[0].name, nodes[0].type, list(nodes[0].data_deps)) == (1, "a", 4, [2, 300])
    assert pb.same(nodes[1], pb.Node())
    assert pb.write_messages(metadata, nodes) == data


def test_sameness_is_exact() -> None:
    def attribute(**value: float) -> object:
        return pb.Attribute(name="x", **value)

    nan = float("nan")
    assert pb.same(attribute(double_val=nan), attribute(double_val=nan))
    assert not pb.same(attribute(double_val=0.0), attribute(double_val=-0.0))
    assert not pb.same(attribute(int64_val=0), attribute(uint64_val=0))
    assert not pb.same(pb.Node(inputs=pb.IOInfo()), pb.Node())
    future, none = pb.Node(), pb.Node()
    future.ParseFromString(strategies.number(99, 1))
    assert not pb.same(future, none)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=strategies.et_files())
def test_oracle_reads_what_the_strategies_make(data: bytes) -> None:
    messages = pb.read_messages(data)
    assert not pb.difference(messages, pb.read_messages(pb.write_messages(*messages)))


def test_oracle_reads_the_real_files(shared: Path) -> None:
    for label, data in distinct_files(shared):
        messages = pb.read_messages(data)
        assert pb.write_messages(*messages) == pb.inflate(data), label


TORCH_ATTRIBUTES = ["rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema", "is_cpu_op", "stream"]
STG_ATTRIBUTES = ["inputs", "outputs", "num_ops", "tensor_size", "op_type"]


@pytest.mark.parametrize(
    "kind, names, bytes_per_node", [("pytorch", TORCH_ATTRIBUTES, 500), ("stg", STG_ATTRIBUTES, 320)]
)
def test_benchmark_files_are_as_protobuf_writes_them(
    kind: str, names: list[str], bytes_per_node: int, tmp_path: Path
) -> None:
    size = et_files.MAKERS[kind](tmp_path / "t.et", 20_000)
    metadata, nodes = pb.read_messages(tmp_path / "t.et")
    assert pb.write_messages(metadata, nodes) == (tmp_path / "t.et").read_bytes()
    assert len(nodes) == 20_000 and size / len(nodes) == pytest.approx(bytes_per_node, rel=0.05)
    assert [a.name for a in next(n for n in nodes if n.type == 4).attr] == names
    assert len({n.id for n in nodes}) == len(nodes)
