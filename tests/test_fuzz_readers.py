"""A fixed sample of damaged files for every reader; `benchmarks/fuzz_readers.py` runs many more."""

from pathlib import Path

import pytest

import fuzz_readers as fuzz
from etude.base.errors import EtudeError

CASES = 25
NAMES = (
    "et", "et.gz", "json", "kineto", "kineto.gz", "host", "device", "host alone", "engine", "xplane", "xla json",
    "nsight", "rocprofv3", "rocprof", "dump", "dump.json",
    "parquet", "manifest",
    "system", "infragraph", "model", "hugging face", "card", "ops",
    "requests", "vllm spans", "sglang spans", "vllm bench", "sglang bench",
    "lengths", "schedule", "times", "table", "msccl", "text",
    "astra network", "astra system", "learned",
)  # fmt: skip


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fuzz.Reader]:
    return {reader.name: reader for reader in fuzz.readers(tmp_path_factory.mktemp("made"))}


def test_every_reader_is_here_and_reads_its_example(readers: dict[str, fuzz.Reader], tmp_path: Path):
    assert tuple(readers) == NAMES
    for reader in readers.values():
        folder = tmp_path / reader.name
        folder.mkdir()
        assert fuzz.attempt(reader, reader.example, folder) == "read", reader.name


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_is_read_or_refused(name: str, readers: dict[str, fuzz.Reader], tmp_path: Path):
    reader = readers[name]
    found = {case: fuzz.attempt(reader, fuzz.damaged(reader.example, case), tmp_path) for case in range(CASES)}
    assert {case: what for case, what in found.items() if what not in ("read", "refused")} == {}


# What once went wrong, as small as it can be.
FOUND = [
    ("ops", b"op,shape,flops,bytes,microseconds\nmm_bf16\n"),
    ("ops", b"op,shape,flops,bytes,microseconds\nmm_bf16,4x8x16,inf,512,3.5\n"),
    ("ops", b"op,shape,flops,bytes,microseconds\nmm_bf16,4x8x16,1e30,512,3.5\n"),
    ("ops", b"op,shape,flops,bytes,microseconds\nmm_bf16,4x8x16,1024,512,1e30\n"),
    ("lengths", b"length,count\n99999999999999999999,1\n"),
    ("kineto", b'{"schemaVersion":1,"distributedInfo":{"rank":2147483648},"traceEvents":'
               b'[{"ph":"X","cat":"cpu_op","name":"a","pid":7,"tid":7,"ts":1,"dur":1,"args":{}}]}'),
    ("astra network", b"\xff\xfe"),
    ("astra system", b"{\xff}"),
    ("astra system", b'{"a":' * 20_000),
    ("astra system", b'{"active-chunks-per-dimension":Infinity}'),
    ("learned", b"[" * 20_000),
    ("vllm spans", b'{"resourceSpans":[],"a":' + b"[" * 20_000),
    ("vllm bench", b'{"request_throughput":1,"a":"\xff"}'),
    ("vllm bench", b'{"request_throughput":1,"a":' + b"[" * 200_000),
    ("learned", b'{"format":"\xff"}'),
    ("times", b"rank,source_id,start_ns,end_ns,\xff\n0,0,5,9,1\n"),
    ("table", b"step,\xff\n0,1\n"),
    ("infragraph", fuzz.INFRAGRAPH.replace("physical: {bandwidth: {giga", "physical: [1], x: {y: {giga").encode()),
    ("infragraph", fuzz.INFRAGRAPH.replace("  edges:", "  edges:\n  - [x]").encode()),
    ("msccl", fuzz.MSCCL.replace('depid="-1"', 'depid="x"').encode()),
    ("msccl", fuzz.MSCCL.replace('depid="-1" deps="-1"', 'depid="0" deps=""').encode()),
    ("msccl", fuzz.MSCCL.replace('chan="0"', 'chan="a"').encode()),
    ("card", b"name: " + b"[" * 400 + b"]" * 400),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_what_once_went_wrong_is_refused(name: str, data: bytes, readers: dict[str, fuzz.Reader], tmp_path: Path):
    path = tmp_path / readers[name].file
    path.write_bytes(data)
    with pytest.raises(EtudeError):
        readers[name].read(path)
