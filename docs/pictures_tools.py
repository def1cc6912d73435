"""Pictures of pages about recordings, replay, formats and ASTRA-sim: see docs/pictures.py."""

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drawing import Axis, Bar, Box, bars, flow, lanes, plot
from pictures import PARTS, ROOT, ask, do, ms, need
from stage import TEXT_WORKLOAD, captures

from etude.base.units import format_bytes

NETWORK = "--network {0}/network.yml --system {0}/system.json"
PART_KEYS = ("compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")


def parts_of(row: dict[str, Any]) -> list[tuple[str, float, str]]:
    """The pieces of a bar: a row of a breakdown."""
    return [(colour, row[key], what) for key, (what, colour) in zip(PART_KEYS, PARTS, strict=True)]


def collect() -> str:
    """What the two traces of the full window of the embedded recording hold."""
    need("job")
    with gzip.open("run/gpt.rank0.kineto.json.gz") as file:
        events = json.load(file)["traceEvents"]
    with gzip.open("run/gpt.rank0.et.json.gz") as file:
        nodes = len(json.load(file)["nodes"])
    held = Counter(event.get("cat") for event in events if event["ph"] == "X")
    kinds = (("operators, with times", "cpu_op", "host"), ("calls of runtime and driver", "cuda_runtime cuda_driver", "launch"),
             ("kernels", "kernel", "compute"), ("copies and fills", "gpu_memcpy gpu_memset", "memory"),
             ("synchronisations", "cuda_sync", "other"), ("annotations, steps among them", "user_annotation", "idle"))  # fmt: skip
    drawn = [Bar("operators, with arguments", [("host", nodes, "")], f"{nodes:,} in the execution trace")]
    for name, cats, colour in kinds:
        count = sum(held[cat] for cat in cats.split())
        drawn.append(Bar(name, [(colour, count, "")], f"{count:,} in the profiler trace"))
    return bars("What the recording of two training steps of a small GPT on an H200 holds", drawn, left=230)


def replay() -> str:
    """The program of the embedded recording: how each piece of recorded time is played."""
    from etude.run.replay.program import StepKind, load

    need("job")
    do("replay run --plan plans")
    program = load("plans/rank0.program")
    held: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for kind, row, ns in zip(program.steps.kind.tolist(), program.steps.row.tolist(), program.steps.work_ns.tolist(), strict=True):  # fmt: skip
        if kind == StepKind.CALL:
            name = program.ops[program.calls.op[row]].partition(".")[0].removeprefix("aten::")
            held[name] += max(ns, 0)
            count[name] += 1
    rows = held.most_common(9)
    rest = held.total() - sum(ns for _, ns in rows)
    drawn = [Bar(name, [("compute", ns, "")], f"{ns / 1e3:.0f} µs in {count[name]} calls") for name, ns in rows]
    calls = count.total() - sum(count[name] for name, _ in rows)
    drawn.append(Bar(f"{len(held) - 9} others", [("idle", rest, "")], f"{rest / 1e3:.0f} µs in {calls} calls"))
    return bars(
        "Operators that a replay of the recording calls, by the recorded time of their kernels", drawn, left=330
    )


def qualify() -> str:
    """One H200 node measured three times as it is, once with its GPU shared, once with its CPUs busy."""
    folder = ROOT / "examples" / "qualify"
    idle = [json.loads((folder / f"{name}.json").read_text()) for name in ("first", "second", "third")]
    drawn = []
    for name, what in (("shared-gpu", "GPU shared"), ("busy-host", "CPUs busy")):
        others = " ".join(f"--against {folder / other}.json" for other in ("first", "second", "third"))
        found = ask(f"qualify --measured {folder / name}.json {others}")
        slow = {word for row in found["findings"] if row["node"] == name for word in row["figures"].split(", ")}
        for row in found["figures"]:
            if row["figure"] in ("interpreter", "operator dispatch", "host to device 256 MiB"):
                continue
            peers = sorted(f["value"] for node in idle for f in node["figures"] if f["name"] == row["figure"])
            ratio = row["value"] / peers[1]
            named = any(word.startswith(row["figure"]) for word in slow)
            label = f"{what}: {row['figure'].removesuffix(' cuda:0')}"
            drawn.append(Bar(label, [("bad" if named else "compute", ratio, "")], f"{ratio:.2f}"))
    return bars("Figures of a node against the median of three idle measurements", drawn,
                (("named as slow", "bad"), ("not named", "compute")), left=240)  # fmt: skip


def operators() -> str:
    """Measured times over the roofline, with the curves between them."""
    import numpy as np

    from etude.cost.opdb import OpDatabase, read_points
    from etude.cost.opdb.curves import _base_ns
    from etude.machine import open_device

    device = open_device("h200")
    shapes, time_ns = OpDatabase(read_points(ROOT / "benchmarks" / "h200_ops_points.csv")).points()
    curves = OpDatabase(read_points(ROOT / "benchmarks" / "h200_ops_points.csv")).on(device)
    lines: dict[str, list[tuple[float, float]]] = {}
    points = []
    for op, dtype in (("add", "bf16"), ("gelu", "bf16"), ("adamw", "fp32")):
        mine = np.flatnonzero((shapes.op == op) & (shapes.dtype == dtype))
        key = shapes.dims[mine[0], :-1]
        mine = np.array([i for i in mine if (shapes.dims[i, :-1] == key).all()])
        ratio = time_ns[mine] / _base_ns(device, shapes.take(mine))[0]
        elements = shapes.dims[mine, -1]
        points += [(float(x), float(y), "idle", f"{op}: measured") for x, y in zip(elements, ratio, strict=True)]
        between = np.unique(np.geomspace(elements.min(), elements.max(), 60).astype(np.int64))
        asked = shapes.take(np.full(len(between), mine[0]))
        asked.dims[:, -1] = between
        found = curves.time_ns(asked)[0] / _base_ns(device, asked)[0]
        lines[f"{op} {dtype}"] = [(float(x), float(y)) for x, y in zip(between, found, strict=True)]
    top = max(y for _, y, *_ in points)
    return plot("Measured time over the roofline on an H200: points, and the curve between them",
                Axis("elements", 1e5, 1e10, lambda v: f"{v:.0e}", log=True), Axis("measured / roofline", 0, top * 1.05), lines, points=points)  # fmt: skip


def directives() -> str:
    """A step and its memory with each of the files of examples/directives."""
    drawn = []
    for name in ("zero0", "zero1", "zero2", "zero3"):
        asked = f"predict gpt2-xl --gpus 16 --micro-batch 1 --global-batch 32 --system dgx-h100 --directives {ROOT}/examples/directives/{name}.yaml"
        found = ask(asked)
        drawn.append(Bar(f"{name}.yaml", [("memory", found["memory_peak_bytes"] / 1e9, "")],
                         f"{found['memory_peak_bytes'] / 1e9:.1f} GB, step {ms(found['step_time_ns'])}"))  # fmt: skip
    return bars("GPT-2 XL on 16 H100 under the directives of examples/directives: memory of a rank", drawn)


def communications() -> str:
    """Bytes of each kind of communication in recordings of two and four ranks."""
    traces = captures()
    folder = traces.parent / "torch_cpu" if traces else None
    if folder is None or not folder.is_dir():
        raise FileNotFoundError("the recordings of several ranks are not here")
    rows, kinds = {}, Counter[str]()
    for name in ("ddp_4p", "fsdp2_4p", "dp_tp_4p", "pp_1f1b_4p", "moe_2p", "tp_sp_2p"):
        if not list(folder.glob(f"{name}.rank0.*")):
            continue
        found = ask(f"info {folder / name}")
        rows[name] = {row["type"].lower(): row["bytes"] for row in found["collectives"]}
        if found["p2p"]["sends"]:
            rows[name]["send"] = found["p2p"]["bytes_sent"]
        kinds.update(rows[name])
    colours = dict(zip(sorted(kinds), ("communication", "compute", "good", "memory", "other", "launch", "idle"), strict=False))  # fmt: skip
    drawn = [Bar(name, [(colours[k], size, k) for k, size in sorted(held.items())], format_bytes(sum(held.values())))
             for name, held in rows.items()]  # fmt: skip
    return bars("Bytes by kind of communication in recordings of PyTorch, all ranks", drawn, list(colours.items()))


def astra() -> str:
    """An all-reduce by size: both of ASTRA-sim's analytical backends, and Etude's own simulator."""
    lines: dict[str, list[tuple[float, float]]] = {
        "as ASTRA-sim, unaware": [],
        "as ASTRA-sim, aware": [],
        "etude simulate": [],
    }
    for k in range(12, 31, 2):
        job, files = f"reduce{k}", f"astra{k}"
        do(f"generate micro all_reduce --ranks 8 --bytes {1 << k} -o {job}")
        do(f"convert {job} {files} --to astra --system dgx-h100")
        there = f"simulate astra {files} {NETWORK.format(files)}"
        for name, line in zip(lines, (f"{there} --backend unaware", f"{there} --backend aware",
                                      f"simulate {job} --system dgx-h100"), strict=True):  # fmt: skip
            lines[name].append((1 << k, max(row["finish_ns"] for row in ask(line)["ranks"]) / 1e3))
    return plot("An all-reduce over the 8 H100 of a node, by size",
                Axis("bytes", 3e3, 1.3e9, lambda v: format_bytes(int(v)), log=True), Axis("µs", 3, 1e4, log=True), lines)  # fmt: skip


def astra_patterns() -> str:
    """Patterns of 64 MB in ASTRA mode, and by Etude's own networks."""
    drawn = []
    for pattern in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        job, files = f"{pattern}16", f"astra-{pattern}"
        do(f"generate micro {pattern} --ranks 16 --bytes 64MB -o {job}")
        do(f"convert {job} {files} --to astra --system dgx-h100")
        for name, colour, line in (
            ("as ASTRA-sim", "communication", f"simulate astra {files} {NETWORK.format(files)}"),
            ("etude simulate", "compute", f"simulate {job} --system dgx-h100"),
        ):
            ns = max(row["finish_ns"] for row in ask(line)["ranks"])
            drawn.append(Bar(f"{pattern}, {name}", [(colour, ns, "")], f"{ns / 1e3:,.0f} µs"))
    return bars("64 MB on each of 16 H100 of two nodes: ASTRA-sim's time and Etude's own", drawn, left=210)


def text_workload() -> str:
    """The two layers of the page's example, over time."""
    import etude

    Path("w.txt").write_text(TEXT_WORKLOAD)
    do("convert w.txt text --to et --ranks 8")
    run = etude.simulate(etude.open("text"), etude.open_system("dgx-h100"))
    part = next(iter(run.parts()))
    rows: dict[str, list[tuple[float, float, str, str]]] = {"compute": [], "communication": []}
    from etude.model.schema import Kind

    for node in range(len(part.trace)):
        start, end = int(part.start_ns[node]), int(part.end_ns[node])
        if end > start:
            lane = "compute" if part.trace.kind[node] == Kind.COMP else "communication"
            rows[lane].append((start, end, lane, part.trace.text("name", node).removeprefix("COMP_NODE_")))
    return lanes("The two layers of w.txt on 8 H100, one pass", list(rows.items()), lambda ns: f"{ns / 1e3:.0f} µs",
                 (("compute", "compute"), ("all-reduces of gradients", "communication")), labels=True)  # fmt: skip


def readers() -> str:
    """Breakdowns of recordings of three profilers."""
    folder = ROOT / "tests" / "golden" / "profiles"
    rows = {"PyTorch on an H200": ask(f"breakdown {need('job')}")["ranks"][0],
            "JAX on an H200": ask(f"breakdown {folder / 'jax_h200.xplane.pb.gz'}")["ranks"][0],
            "Nsight Systems, H200": ask(f"breakdown {folder / 'nsight_h200.sqlite.gz'}")["ranks"][0]}  # fmt: skip
    drawn = [Bar(name, [(c, size / row["span_ns"], what) for c, size, what in parts_of(row)], f"of {ms(row['span_ns'])}")
             for name, row in rows.items()]  # fmt: skip
    return bars("One breakdown for the files of three profilers", drawn, PARTS, left=170)


def anonymise() -> str:
    """How far the simulated step of a rounded copy is from that of the job."""
    need("llama")
    do("edit llama -o timed 'speed by=1' --times-on dgx-h100")
    real = max(row["finish_ns"] for row in ask("simulate timed --system dgx-h100")["ranks"])
    drawn = [Bar("the job", [("idle", real, "")], ms(real))]
    for flags in ("", "--round 64", "--round 8", "--round 1"):
        name = "copy" + flags.replace("--round ", "")
        do(f"anonymise timed -o {name} {flags}")
        ns = max(row["finish_ns"] for row in ask(f"simulate {name} --system dgx-h100")["ranks"])
        drawn.append(Bar(f"anonymise {flags}".strip(), [("compute", ns, "")], f"{ms(ns)}, {ns / real - 1:+.2%}"))
    return bars("Simulated step of Llama 3 8B on 16 H100 and of its copies", drawn, left=170)


def feeder() -> str:
    """How many nodes of a rank are ready as they are issued one after another."""
    import etude
    from etude.extend import feeder as feeder_of

    lines = {}
    for name, job in (("the recording", etude.open_run("run" if need("job") else "").job),
                      ("Llama 3 8B, rank 0", etude.open(need("llama")))):  # fmt: skip
        feed = feeder_of(job)
        line, done = [], 0
        total = len(job.trace(0))
        while (node := feed.next(0)) is not None:
            feed.complete(0, node)
            done += 1
            if done % max(1, total // 200) == 0:
                line.append((done / total, float(len(feed.ready(0)))))
        lines[name] = line
    high = max(y for line in lines.values() for _, y in line)
    return plot("Nodes that are ready while a rank is fed to its end", Axis("part of its nodes", 0, 1),
                Axis("ready nodes", 0, high * 1.05), lines, steps=True)  # fmt: skip


def life() -> str:
    """The way of the data, and the folders in which it happens."""
    boxes = [
        Box(0, 0, "collect", "PyTorch's traces"), Box(0, 1, "other profilers", "JAX, Nsight, rocprof"),
        Box(0, 2, "generate, learn", "model and plan"), Box(0, 3, ".et files", "Chakra"),
        Box(1, 0.5, "link, ingest", "causal graph"), Box(2, 1.5, "Job", "traces, ranks, groups"),
        Box(3, 0, "edit", "another Job: what if"), Box(3, 1, "simulate, replay", "on a System"), Box(3, 2, "serve, fleet", "from step costs"),
        Box(3, 3, "store", ".et, Parquet, JSON"),
        Box(4, 1, "Run", "a Job with times"), Box(4, 2, "analyse, report", "tables and pages"),
    ]  # fmt: skip
    arrows = [(0, 4), (1, 4), (2, 5), (3, 5), (4, 5), (5, 6), (5, 7), (5, 8), (5, 9), (7, 10), (10, 11), (8, 11)]
    return flow("From a file to an answer", boxes, arrows)


PICTURES: dict[str, Callable[[], str]] = {
    "collect": collect, "replay": replay, "qualify": qualify, "operators": operators, "directives": directives,
    "communications": communications, "astra": astra, "astra-patterns": astra_patterns, "text-workload": text_workload,
    "readers": readers, "anonymise": anonymise, "feeder": feeder, "life": life,
}  # fmt: skip
