"""Reading and writing `.et`: our columns against protobuf messages.

    python benchmarks/bench_et.py                  # a million nodes of each kind
    python benchmarks/bench_et.py --quick          # 50,000
    python benchmarks/bench_et.py --json out/et.json --kind stg --nodes 200000

One thread, CPU seconds; every figure comes from a process of its own that has imported everything and has read a small
file before the clock starts, so neither start-up nor compilation counts. Files are read into memory beforehand. Peak
memory is what the process needs above that state, the bytes of the file included.

The baseline parses each message with protobuf, appends every field and every attribute to Python lists and turns those
into Arrow arrays; the other way, it builds messages from the lists and serialises them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]
ONE_THREAD = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ARROW_IO_THREADS")
WARM_NODES = 500


# ---- ours, called only from here

PAD = 8  # a heap ends in this many zero bytes


def ours_decode(data: Any) -> Any:
    """Columns, strings left as slices of the file."""
    from etude.store import chakra

    return chakra.decode_files(data, [(0, len(data) - PAD, "benchmark")])[0]


def ours_interned(data: Any) -> Any:
    """Columns, every string in a dictionary."""
    decoded = ours_decode(data)
    decoded.trace.intern()
    return decoded


def ours_encode(decoded: Any) -> Any:
    from etude.store import chakra

    return chakra.encode(decoded)


# ---- the baseline


@dataclass
class Lists:
    """A trace as Python lists. Node i has attributes attr_end[i-1]:attr_end[i]; the values of a kind are in file
    order, those of list kinds flat with their own ends."""

    id: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    type: list[int] = field(default_factory=list)
    start_micros: list[int] = field(default_factory=list)
    duration_micros: list[int] = field(default_factory=list)
    ctrl: list[int] = field(default_factory=list)
    ctrl_end: list[int] = field(default_factory=list)
    data: list[int] = field(default_factory=list)
    data_end: list[int] = field(default_factory=list)
    has_inputs: list[bool] = field(default_factory=list)
    in_values: list[str] = field(default_factory=list)
    in_shapes: list[str] = field(default_factory=list)
    in_types: list[str] = field(default_factory=list)
    has_outputs: list[bool] = field(default_factory=list)
    out_values: list[str] = field(default_factory=list)
    out_shapes: list[str] = field(default_factory=list)
    out_types: list[str] = field(default_factory=list)
    attr_end: list[int] = field(default_factory=list)
    attr_name: list[str] = field(default_factory=list)
    attr_doc: list[str] = field(default_factory=list)
    attr_kind: list[int] = field(default_factory=list)
    values: dict[str, list[Any]] = field(default_factory=dict)
    ends: dict[str, list[int]] = field(default_factory=dict)


def _bodies(data: bytes) -> list[memoryview]:
    view, at, bodies, end = memoryview(data), 0, [], len(data)
    while at < end:
        size, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        bodies.append(view[at : at + size])
        at += size
    return bodies


def baseline_lists(data: bytes) -> tuple[Any, Lists]:
    """Every field of every node, through messages."""
    import chakra_pb as pb

    bodies = _bodies(data)
    metadata = pb.GlobalMetadata.FromString(bytes(bodies[0]))
    out = Lists()
    out.values = {kind: [] for kind in pb.VALUE_KINDS}
    out.ends = {kind: [] for kind in pb.VALUE_KINDS if kind.endswith("_list")}
    number = {kind: k + 1 for k, kind in enumerate(pb.VALUE_KINDS)}
    values, ends, parse = out.values, out.ends, pb.Node.FromString
    attr_name, attr_doc, attr_kind = out.attr_name, out.attr_doc, out.attr_kind
    for body in bodies[1:]:
        node = parse(body)
        out.id.append(node.id)
        out.name.append(node.name)
        out.type.append(node.type)
        out.start_micros.append(node.start_time_micros)
        out.duration_micros.append(node.duration_micros)
        out.ctrl.extend(node.ctrl_deps)
        out.ctrl_end.append(len(out.ctrl))
        out.data.extend(node.data_deps)
        out.data_end.append(len(out.data))
        out.has_inputs.append(node.HasField("inputs"))
        inputs = node.inputs
        out.in_values.append(inputs.values)
        out.in_shapes.append(inputs.shapes)
        out.in_types.append(inputs.types)
        out.has_outputs.append(node.HasField("outputs"))
        outputs = node.outputs
        out.out_values.append(outputs.values)
        out.out_shapes.append(outputs.shapes)
        out.out_types.append(outputs.types)
        for attribute in node.attr:
            attr_name.append(attribute.name)
            attr_doc.append(attribute.doc_string)
            kind = attribute.WhichOneof("value")
            if kind is None:
                attr_kind.append(0)
                continue
            attr_kind.append(number[kind])
            if kind in ends:
                values[kind].extend(getattr(attribute, kind).values)
                ends[kind].append(len(values[kind]))
            else:
                values[kind].append(getattr(attribute, kind))
        out.attr_end.append(len(attr_name))
    return metadata, out


ARROW = {"double": "float64", "float": "float32", "bool": "bool_", "string": "large_string", "bytes": "large_binary"}
ARROW |= {"sint32": "int32", "sint64": "int64", "fixed32": "uint32", "fixed64": "uint64"}
ARROW |= {"sfixed32": "int32", "sfixed64": "int64"}


def baseline_decode(data: bytes) -> Any:
    """Arrow arrays by name."""
    import pyarrow as pa

    _, lists = baseline_lists(data)
    arrays: dict[str, Any] = {}
    types = {"type": pa.int32(), "attr_kind": pa.int8(), "has_inputs": pa.bool_(), "has_outputs": pa.bool_()}
    for name, column in vars(lists).items():
        if name in ("values", "ends"):
            continue
        text = column and isinstance(column[0], str)
        arrays[name] = pa.array(column, types.get(name, pa.large_string() if text else pa.uint64()))
    for kind, column in lists.values.items():
        plain = kind.rsplit("_", 1)[0]
        arrays[kind] = pa.array(column, getattr(pa, ARROW.get(plain, plain))())
        if kind in lists.ends:
            arrays[f"{kind}_end"] = pa.array(lists.ends[kind], pa.int64())
    return arrays


def baseline_encode(source: tuple[Any, Lists]) -> bytes:
    """The file, through messages."""
    import chakra_pb as pb

    metadata, lists = source
    out = []

    def emit(message: Any) -> None:
        body = message.SerializeToString()
        out.append(pb.varint(len(body)))
        out.append(body)

    emit(metadata)
    kinds = ("", *pb.VALUE_KINDS)
    cursor = {kind: iter(column) for kind, column in lists.values.items() if kind not in lists.ends}
    at_list = dict.fromkeys(lists.ends, 0)
    ctrl = data = attr = 0
    for i, id in enumerate(lists.id):
        node = pb.Node(
            id=id,
            name=lists.name[i],
            type=lists.type[i],
            ctrl_deps=lists.ctrl[ctrl : lists.ctrl_end[i]],
            data_deps=lists.data[data : lists.data_end[i]],
            start_time_micros=lists.start_micros[i],
            duration_micros=lists.duration_micros[i],
        )
        if lists.has_inputs[i]:
            inputs = node.inputs
            inputs.SetInParent()
            inputs.values, inputs.shapes, inputs.types = lists.in_values[i], lists.in_shapes[i], lists.in_types[i]
        if lists.has_outputs[i]:
            outputs = node.outputs
            outputs.SetInParent()
            outputs.values, outputs.shapes, outputs.types = lists.out_values[i], lists.out_shapes[i], lists.out_types[i]
        add = node.attr.add
        for k in range(attr, lists.attr_end[i]):
            attribute = add()
            attribute.name = lists.attr_name[k]
            if lists.attr_doc[k]:
                attribute.doc_string = lists.attr_doc[k]
            kind = kinds[lists.attr_kind[k]]
            if kind in cursor:
                setattr(attribute, kind, next(cursor[kind]))
            elif kind:
                ends, at = lists.ends[kind], at_list[kind]
                begin = ends[at - 1] if at else 0
                target = getattr(attribute, kind)
                target.SetInParent()
                target.values.extend(lists.values[kind][begin : ends[at]])
                at_list[kind] = at + 1
        ctrl, data, attr = lists.ctrl_end[i], lists.data_end[i], lists.attr_end[i]
        emit(node)
    return b"".join(out)


# ---- the floor


def copy(data: Any) -> Any:
    return data.copy()


def scan(data: Any) -> int:
    """How many messages there are, by hopping from length to length."""
    return int(_compiled_scan()(data))


_SCAN: list[Any] = []


def _compiled_scan() -> Any:
    if not _SCAN:
        from numba import njit

        @njit
        def hop(data: Any) -> int:
            at, count, end = 0, 0, len(data)
            while at < end:
                size, shift = 0, 0
                while data[at] > 127:
                    size |= (data[at] & 127) << shift
                    shift += 7
                    at += 1
                size |= data[at] << shift
                at += 1 + size
                count += 1
            return count

        _SCAN.append(hop)
    return _SCAN[0]


# ---- one measurement, in a process of its own


@dataclass(frozen=True)
class Task:
    """`prepare` turns the bytes of a file into what `work` takes; only `work` is measured."""

    work: Callable[[Any], Any]
    prepare: Callable[[Any], Any] | None = None
    repeat: int = 3
    raw: bool = False  # bytes, not an array


TASKS = {
    "copy": Task(copy),
    "scan": Task(scan),
    "decode, baseline": Task(baseline_decode, repeat=1, raw=True),
    "decode, slices": Task(ours_decode),
    "decode, interned": Task(ours_interned),
    "encode, baseline": Task(baseline_encode, baseline_lists, repeat=1, raw=True),
    "encode, ours": Task(ours_encode, ours_decode),
}


def _status(key: str) -> int:
    """A figure of this process in bytes, or 0."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":")), 0)


def _reset_peak() -> int:
    """Forgets the peak so far, where the system can, and returns what memory is used now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except OSError:
        return _peak()


def _peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure(name: str, path: Path, warm: Path) -> dict[str, float]:
    """CPU seconds (the best of a few), peak memory of the first run, and the share of CPU time outside this thread."""
    import pyarrow as pa

    import chakra_pb  # noqa: F401
    from etude.store import compressed

    pa.set_cpu_count(1)
    task = TASKS[name]
    read: Callable[[Path], Any] = Path.read_bytes if task.raw else lambda p: compressed.load(p)[0]
    prepare = task.prepare or (lambda data: data)
    task.work(prepare(read(warm)))
    base = _reset_peak()
    data = read(path)
    size, source = path.stat().st_size, prepare(data)
    if task.prepare:
        base = _reset_peak()  # what is to be written is there already
    best, elsewhere, wall, peak = float("inf"), 0.0, 0.0, 0
    for k in range(task.repeat):
        begin = time.process_time(), time.thread_time(), time.perf_counter()
        result = task.work(source)
        cpu, thread = time.process_time() - begin[0], time.thread_time() - begin[1]
        if k == 0:
            peak = _peak() - base
        if cpu < best:
            best, elsewhere, wall = cpu, max(cpu - thread, 0.0), time.perf_counter() - begin[2]
        if name.startswith("encode") and k == 0 and len(memoryview(result)) != size:
            print(f"note: wrote {len(memoryview(result)):,} bytes for {size:,}", file=sys.stderr)
        del result
    return {"cpu_s": best, "wall_s": wall, "peak_bytes": peak, "bytes": size, "other_threads_s": elsewhere}


# ---- all of them


def _available() -> bool:
    try:
        from etude.store import chakra  # noqa: F401
    except ImportError:
        return False
    return True


def _spawn(name: str, path: Path, warm: Path) -> dict[str, float]:
    environment = os.environ | dict.fromkeys(ONE_THREAD, "1")
    command = [sys.executable, __file__, "--measure", name, "--file", str(path), "--warm", str(warm)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"`{name}` on {path.name} failed")
    result: dict[str, float] = json.loads(done.stdout)
    if result["other_threads_s"] > 0.05 * result["cpu_s"] + 0.02:
        raise SystemExit(f"`{name}` used more than one thread: {result}")
    return result


def _table(kind: str, nodes: int, results: dict[str, dict[str, float]]) -> str:
    size = results["copy"]["bytes"]
    lines = [f"{kind}-like, {nodes:,} nodes, {size / 1e6:,.1f} MB, {size / nodes:.0f} B a node"]
    head = ("", "CPU s", "MB/s", "nodes/s", "x baseline", "x scan", "x copy", "peak MB", "of baseline")
    lines.append(f"{head[0]:<18}" + "".join(f"{h:>13}" for h in head[1:]))
    for name, r in results.items():
        base = results.get(f"{name.split(',')[0]}, baseline")
        against = f"{base['cpu_s'] / r['cpu_s']:,.1f}" if base else ""
        memory = f"{r['peak_bytes'] / base['peak_bytes']:.2f}" if base else ""
        cells = [f"{r['cpu_s']:.4f}", f"{size / r['cpu_s'] / 1e6:,.0f}", f"{nodes / r['cpu_s']:,.0f}", against]
        cells += [f"{r['cpu_s'] / results[floor]['cpu_s']:,.1f}" for floor in ("scan", "copy")]
        cells += [f"{r['peak_bytes'] / 1e6:,.0f}", memory]
        lines.append(f"{name:<18}" + "".join(f"{c:>13}" for c in cells))
    return "\n".join(lines)


def compare(kind: str, nodes: int, folder: Path, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """The figures of each task on one file."""
    import et_files

    path, warm = folder / f"{kind}.{nodes}.et", folder / f"{kind}.warm.et"
    if not path.exists():
        et_files.MAKERS[kind](path, nodes)
    et_files.MAKERS[kind](warm, WARM_NODES)
    return {name: _spawn(name, path, warm) for name in names}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="50,000 nodes")
    parser.add_argument("--kind", choices=["pytorch", "stg"], action="append", help="both when not given")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--folder", type=Path, help="keep the files here and use those that are there")
    parser.add_argument("--measure", choices=sorted(TASKS), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--warm", type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args(argv)
    if a.measure:
        print(json.dumps(measure(a.measure, a.file, a.warm)))
        return 0
    nodes = 50_000 if a.quick else a.nodes
    names = list(TASKS)
    if not _available():
        print("etude.store.chakra is not there: baseline only", file=sys.stderr)
        names = [n for n in names if "baseline" in n or "," not in n]
    results = {}
    with tempfile.TemporaryDirectory(prefix="bench_et.") as temporary:
        folder = a.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for kind in a.kind or ["pytorch", "stg"]:
            results[kind] = compare(kind, nodes, folder, names)
            print(_table(kind, nodes, results[kind]), end="\n\n", flush=True)
    if a.json:
        machine = {"machine": platform.machine(), "python": platform.python_version(), "cpus": os.cpu_count()}
        a.json.write_text(json.dumps({"nodes": nodes, **machine, "results": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
