"""Damaged files of every kind that Etude reads, against their readers.

Each reader takes a path and returns, or raises an error of Etude's. Anything else is a failure: another exception, a
crash, more time or memory than a small file can ask for. `benchmarks/fuzz_readers.py` runs many cases, each within
limits; `test_fuzz_readers.py` a fixed sample.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

import etude
from recorded import device_json, event, host_json, kernel, launch, node, op

INFRAGRAPH = """
name: two hosts
devices:
- name: host
  components:
  - {name: xpu, count: 4, choice: xpu}
  - {name: nvsw, count: 1, choice: switch}
  links: [{name: nv, physical: {bandwidth: {gigabytes_per_second: 450}, latency: {us: 1}}}]
  edges:
  - {ep1: {component: 'xpu[0:4]'}, ep2: {component: 'nvsw[0]'}, scheme: many2many, link: nv}
links:
- {name: eth, physical: {bandwidth: {choice: gigabits_per_second, gigabits_per_second: 400}, latency: {us: 1}}}
instances:
- {name: host, device: host, count: 2}
edges:
- {ep1: {instance: 'host[0]', component: 'nvsw[0]'}, ep2: {instance: 'host[1]', component: nvsw}, scheme: one2one, link: eth}
"""  # noqa: E501
MSCCL = """<algo name="ring" nchunksperloop="2" ngpus="2" coll="allreduce" proto="Simple" nchannels="1">
<gpu id="0" i_chunks="2" o_chunks="0" s_chunks="0"><tb id="0" send="1" recv="1" chan="0">
<step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
<step s="1" type="rrcs" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
<step s="2" type="r" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/></tb></gpu>
<gpu id="1" i_chunks="2" o_chunks="0" s_chunks="0"><tb id="0" send="0" recv="0" chan="0">
<step s="0" type="s" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/>
<step s="1" type="rrcs" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
<step s="2" type="r" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="0"/></tb></gpu>
</algo>
"""
TEXT = """HYBRID_TRANSFORMER model_parallel_NPU_group: 2
2
a -1 1 ALLREDUCE 8 1 ALLREDUCE 8 1 ALLREDUCE 16 1
b -1 1 ALLGATHER 4 1 REDUCESCATTER 4 1 NONE 0 1
"""
CARD = {"name": "gpt", "model": {"name": "gpt3-175b"}, "plan": {"tp": 2}, "hardware": {"devices": 8}}
DUMP: dict[str, Any] = {
    "version": "2.9", "rank": 0,
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}, "pg_status": {},
    "entries": [
        {"record_id": k, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": k, "p2p_seq_id": 0,
         "op_id": k, "profiling_name": "nccl:all_reduce", "time_created_ns": 1000 * k, "input_sizes": [[4, 4]],
         "input_dtypes": ["Float"], "output_sizes": [[4, 4]], "output_dtypes": ["Float"], "state": "completed",
         "time_discovered_started_ns": 1000 * k + 10, "time_discovered_completed_ns": 1000 * k + 90, "retired": True,
         "timeout_ms": 1000, "is_p2p": False, "duration_ms": 0.1, "frames": []} for k in range(1, 5)],
}  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """One kind of file: what it may be called, an example, and what reads it."""

    name: str
    file: str
    example: bytes
    read: Callable[[Path], object]


def readers(folder: Path) -> list[Reader]:
    """All of them; `folder` is for what is needed to make the examples."""
    from etude.capture.ingest import causal, reading
    from etude.capture.ingest.requests import measured_requests
    from etude.cost.calibrate import read_measured
    from etude.cost.schedule_files import from_msccl
    from etude.machine.open import open_system
    from etude.make.generate.model.open import open_model
    from etude.make.generate.schedules import csv as schedule_files
    from etude.make.generate.train.lengths import Lengths
    from etude.make.synth.learned import read as read_learned
    from etude.run.astra.config import read_network, read_system
    from etude.store import cards
    from etude.store.tables import read_table
    from etude.store.times import read_timing
    from etude.world.serve.request_files import read_requests

    made = _jobs(folder)
    job = etude.open(made["et"])
    whole = made["et"].read_bytes()
    device = _json(device_json(
        op("aten::mm", 0, 30, 1), launch(5, 1), kernel("gemm", 20, 40, 1, 1), op("aten::add", 40, 20, 2),
        launch(45, 2), kernel("add", 70, 5, 2, 2), distributedInfo={"rank": 0, "world_size": 2, "backend": "nccl"},
    ))  # fmt: skip
    host = _json(host_json(node(3, "aten::mm", 2, 1, inputs=([[1, 2, 0, 16, 4, "cpu"]], [[4, 4]], ["Tensor(float)"])),
                           node(4, "aten::add", 2, 2)))  # fmt: skip
    engine = _json(device_json(
        op("execute_context_1(9)_generation_2(2)", 0, 40, 1, cat="user_annotation"), op("aten::mm", 5, 30, 2),
        launch(10, 3), event("cuda_profiler_range", "gemm", 50, 9, 0, insts=3, rate=0.5),
        op("step[DECODE bs=2]", 60, 40, 4, cat="user_annotation"), launch(70, 5),
        event("cuda_profiler_range", "add", 60, 9, 0, insts=4, rate=1.5),
    ))  # fmt: skip
    (folder / "host.json").write_bytes(host)
    (folder / "device.json").write_bytes(device)

    def linked(host: Path, device: Path) -> object:
        return causal.convert(reading.load_device(device, None), reading.load_host(host, None))

    catalogue = files("etude.machine.catalogue")
    models = yaml.safe_load(
        files("etude.make.generate.model").joinpath("catalogue").joinpath("decoders.yaml").read_text("utf-8")
    )
    return [
        Reader("et", "w.0.et", whole, etude.open),
        Reader("et.gz", "w.0.et.gz", gzip.compress(whole, mtime=0), etude.open),
        Reader("json", "w.0.json", made["json"].read_bytes(), etude.open),
        Reader("kineto", "trace.json", device, etude.open),
        Reader("kineto.gz", "trace.json.gz", gzip.compress(device, mtime=0), etude.open),
        Reader("host", "host.json", host, lambda path: linked(path, folder / "device.json")),
        Reader("device", "device.json", device, lambda path: linked(folder / "host.json", path)),
        Reader("host alone", "alone.json", host, etude.open),
        Reader("engine", "engine.json", engine, etude.open),
        Reader("xplane", "run.xplane.pb", _profile("jax_cpu.xplane.pb.gz"), etude.open),
        Reader("xla json", "run.trace.json", _profile("jax_cpu.trace.json.gz"), etude.open),
        Reader("nsight", "run.sqlite", _profile("nsight_h200.sqlite.gz"), etude.open),
        Reader("rocprofv3", "results.json", _profile("rocprofv3.json"), etude.open),
        Reader("rocprof", "results.json", _profile("rocprof_results.json"), etude.open),
        Reader("dump", "fr_0", pickle.dumps(DUMP), etude.open),
        Reader("dump.json", "fr_0.json", _json(DUMP), etude.open),
        Reader("parquet", "nodes.parquet", (made["parquet"] / "nodes.parquet").read_bytes(), _within(made["parquet"])),
        Reader("manifest", "manifest.json", (made["parquet"] / "manifest.json").read_bytes(), _within(made["parquet"])),
        Reader("system", "s.yaml", catalogue.joinpath("dgx-h100.yaml").read_bytes(), open_system),
        Reader("infragraph", "c.infragraph.yaml", INFRAGRAPH.encode(), open_system),
        Reader("model", "m.yaml", yaml.safe_dump(next(iter(models.values()))).encode(), open_model),
        Reader("hugging face", "config.json", _json(HUGGING_FACE), open_model),
        Reader("card", "card.yaml", yaml.safe_dump(CARD).encode(), cards.read),
        Reader("ops", "ops.csv", b"op,shape,flops,bytes,microseconds\nmm_bf16,4x8x16,1024,512,3.5\n", read_measured),
        Reader("requests", "r.csv", b"arrival,prompt,output\n0.5,100,20\n1.5,7,3\n", read_requests),
        Reader("vllm spans", "s.jsonl", _requests("vllm-0.32.0.jsonl"), measured_requests),
        Reader("sglang spans", "s.jsonl", _requests("sglang-0.5.23.jsonl"), measured_requests),
        Reader("vllm bench", "r.json", _requests("vllm-bench-0.32.0.json"), read_requests),
        Reader("sglang bench", "r.jsonl", _requests("sglang-bench-0.5.23.jsonl"), measured_requests),
        Reader("lengths", "l.csv", b"length,count\n512,3\n2048,1\n", lambda path: Lengths.parse(str(path))),
        Reader("schedule", "s.csv", b"0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", schedule_files.read),
        Reader("times", "t.csv", b"rank,source_id,start_ns,end_ns\n0,0,5,9\n", lambda path: read_timing(job, path)),
        Reader("table", "t.csv", b"step,rank,tokens\n0,0,1005\n0,1,1052\n", read_table),
        Reader("msccl", "a.xml", MSCCL.encode(), lambda path: from_msccl(path.read_bytes())),
        Reader("text", "w.txt", TEXT.encode(), lambda path: etude.open(path, ranks=4)),
        Reader("astra network", "n.yml", ASTRA_NETWORK, read_network),
        Reader("astra system", "s.json", _json(ASTRA), read_system),
        Reader("learned", "model.json", made["learned"].read_bytes(), read_learned),
    ]


HUGGING_FACE = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 128, "num_key_value_heads": 2,
}  # fmt: skip
ASTRA_NETWORK = b"topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n"
ASTRA = {
    "scheduling-policy": "LIFO", "endpoint-delay": 10, "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 4, "all-reduce-implementation": ["ring"], "all-gather-implementation": ["ring"],
    "reduce-scatter-implementation": ["ring"], "all-to-all-implementation": ["ring"],
    "collective-optimization": "localBWAware", "local-mem-bw": 1600, "boost-mode": 0,
}  # fmt: skip


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _profile(name: str) -> bytes:
    """A file of another profiler, unpacked."""
    data = (Path(__file__).parent / "golden" / "profiles" / name).read_bytes()
    return gzip.decompress(data) if name.endswith(".gz") else data


def _requests(name: str) -> bytes:
    return (Path(__file__).parent / "golden" / "requests" / name).read_bytes()


def _jobs(folder: Path) -> dict[str, Path]:
    """One small job in every format of Etude's own."""
    from etude.surface.cli import main

    made = folder / "made"
    made.mkdir(exist_ok=True)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        for to in ("et", "json", "parquet"):
            micro = ["generate", "micro", "all_reduce", "--ranks", "2", "--bytes", "1MB", "--to", to]
            assert main([*micro, "-o", str(made / to)]) == 0
        assert main(["learn", str(made / "parquet"), "-o", str(made / "model.json")]) == 0
    return {
        "et": next((made / "et").glob("*.0.et")),
        "json": next((made / "json").glob("*.0.json")),
        "parquet": made / "parquet",
        "learned": made / "model.json",
    }


def _within(job: Path) -> Callable[[Path], object]:
    """Reads a copy of a Parquet folder in which one file is the given one."""

    def read(path: Path) -> object:
        copy = path.parent / "job"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(job, copy)
        shutil.copyfile(path, copy / path.name)
        return etude.open(copy)

    return read


# ---- damage

HUGE = [2**31, 2**63 - 1, 2**63, 2**64, -1, 0, 10**40, 1e308, float("nan"), float("inf"), -float("inf"), -0.0, 0.5]
ODD = [None, True, "", "x", [], {}, [[]], "\u0000", "\ud800", "𝔘" * 50, "-1", "1e400", "=1+1", "../../etc/passwd"]
TOKENS = [b"NaN", b"-1", b"1e999", b"\xff\xfe", b"\x00", b"99999999999999999999", b"null", b'"', b"[", b"{", b"}",
          b",", b"\n", b"&a", b"*a", b"<<: *a", b"!!python/object:os.system x",
          b"\xf0\x9f\x92\xa9", b"0x10", b"-0"]  # fmt: skip


def damaged(example: bytes, case: int) -> bytes:
    """The `case`-th damage: always the same for the same example."""
    chance = random.Random(case * 7919 + len(example))
    structured = _structured(example, chance) if chance.random() < 0.5 else None
    data = bytearray(structured if structured is not None else example)
    for _ in range(0 if structured is not None and chance.random() < 0.8 else chance.choice((1, 1, 1, 2, 5))):
        _bytes(data, chance)
    return bytes(data)


def _bytes(data: bytearray, chance: random.Random) -> None:
    at, to = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
    match chance.randrange(7):
        case 0:
            del data[at:]
        case 1:
            del data[at : min(to, at + 64)]
        case 2:
            for _ in range(chance.choice((1, 1, 4, 16))):
                if data:
                    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case 3:
            data[at:at] = data[at : min(to, at + 4096)]
        case 4:
            data[at : at + chance.choice((0, 1, 4))] = chance.choice(TOKENS)
        case 5:
            data[at:at] = chance.choice((b"[", b"{", b'{"a":', b"- ", b"<a>", b"(", b"\x0a\xff")) * chance.choice(
                (50, 20_000)
            )
        case 6:
            cut = chance.randrange(len(data) + 1)
            data[:] = data[cut:] + data[:cut]


def _structured(example: bytes, chance: random.Random) -> bytes | None:
    """The same document with keys gone, doubled or of another type; None if it is no document."""
    text, dump = example, json.dumps
    try:
        if example[:2] == b"\x80\x04":
            value, pickled = pickle.loads(example), True  # our own
        else:
            value, pickled = yaml.safe_load(text) if len(text) < 4000 else json.loads(text), False
    except (ValueError, yaml.YAMLError, UnicodeDecodeError):
        return _cells(example, chance) if example.count(b",") > 1 and len(example) < 1000 else None
    if not isinstance(value, dict):
        return _cells(example, chance)
    for _ in range(chance.choice((1, 1, 2, 4))):
        _change(value, chance)
    if pickled:
        return pickle.dumps(value)
    try:
        return yaml.safe_dump(value).encode() if chance.random() < 0.5 and example[:1] != b"{" else dump(value).encode()
    except (ValueError, yaml.YAMLError, RecursionError):
        return None


def _change(value: Any, chance: random.Random) -> None:
    """One change somewhere inside."""
    while True:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        inner = value[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.8:
            value = inner
            continue
        break
    match chance.randrange(6):
        case 0:
            del value[key]
        case 1:
            value[key] = chance.choice(HUGE)
        case 2:
            value[key] = chance.choice(ODD)
        case 3:
            value[key] = [inner] * chance.choice((2, 3, 300))
        case 4 if isinstance(value, dict):
            value[chance.choice(["", "x", "tp", "name", " rank"])] = inner
        case _:
            other = chance.choice(keys)
            value[key], value[other] = value[other], inner


def _cells(example: bytes, chance: random.Random) -> bytes:
    """A table with one cell of another kind, a column gone, or a row doubled."""
    rows = [line.split(b",") for line in example.split(b"\n")]
    row = chance.choice(rows)
    shown = [str(value).encode("utf-8", "replace") for value in HUGE + ODD]
    match chance.randrange(4):
        case 0:
            row[chance.randrange(len(row))] = chance.choice(shown)
        case 1:
            at = chance.randrange(max(map(len, rows)))
            rows = [[cell for k, cell in enumerate(cells) if k != at] for cells in rows]
        case 2:
            rows.insert(0, list(row))
        case _:
            row.append(chance.choice(shown))
    return b"\n".join(b",".join(cells) for cells in rows)


def attempt(reader: Reader, data: bytes, folder: Path) -> str:
    """`read`, `refused`, or what went wrong."""
    path = folder / reader.file
    path.write_bytes(data)
    try:
        reader.read(path)
    except etude.EtudeError:
        return "refused"
    except Exception as problem:
        last = problem.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        place = f"{Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno}" if last else ""
        return f"{type(problem).__name__} at {place}"
    return "read"
