"""Pictures of the tutorial, the case study and pages that need one of their own: see docs/pictures.py."""

import shlex
from collections import Counter
from collections.abc import Callable

from drawing import Axis, Bar, bars, lanes, plot
from pictures import PARTS, ROOT, ask, do, ms, need
from stage import captures


def tutorial_path() -> str:
    """What the critical path of the recording consists of."""
    held: Counter[str] = Counter()
    for piece in ask(f"critical-path {need('job')}")["path"]:
        held[piece["name"]] += piece["end_ns"] - piece["start_ns"]
    rows = held.most_common(8)
    rows.append((f"{len(held) - 8} others", held.total() - sum(ns for _, ns in rows)))
    drawn = [Bar(name, [("host", ns, "")], f"{ms(ns)}, {ns / held.total():.1%}") for name, ns in rows]
    return bars("The recording's critical path by operator: all of it is the host", drawn, left=220)


def case_study() -> str:
    """Three runs of the case study; the recordings are reference data beside the repository."""
    traces = captures()
    if traces is None:
        raise FileNotFoundError("the captures of the case study are not here")
    for name in ("b1", "b96"):
        files = [shlex.quote(str(traces / f"gpt8_{name}_{kind}.json.gz")) for kind in ("et", "kineto")]
        do(f"link {' '.join(files)} -o {name}.et")
    rows = {"batch 1, measured": ask("breakdown b1.et")[0],
            "batch 96, predicted": ask("simulate b1.et --device-times-of b96.et --system dgx-h200")["ranks"][0],
            "batch 96, measured": ask("breakdown b96.et")[0]}  # fmt: skip
    keys = ("compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")
    drawn = [Bar(name, [(colour, row[key], what) for key, (what, colour) in zip(keys, PARTS, strict=True)],
                 ms(row["span_ns"])) for name, row in rows.items()]  # fmt: skip
    return bars("Three steps of a GPT on an H200", drawn, PARTS, left=160)


def requests() -> str:
    rows = ask(f"requests {ROOT}/examples/vllm_spans.jsonl --each")
    drawn = []
    for row in rows:
        parts = [("idle", row["queue_s"], ""), ("compute", row["ttft_s"] - row["queue_s"], ""),
                 ("communication", row["latency_s"] - row["ttft_s"], "")]  # fmt: skip
        drawn.append(Bar(f"{row['prompt']} + {row['output']} tokens", parts, f"{row['latency_s'] * 1e3:.0f} ms"))
    entries = (("in the queue", "idle"), ("to the first token", "compute"), ("all other tokens", "communication"))
    return bars("Twelve of the requests of examples/vllm_spans.jsonl", drawn[:12], entries)


def timeline() -> str:
    """Compute of four ranks of a pipeline over time."""
    import etude
    from etude.model.schema import Kind

    made = etude.generate(etude.extend.open_model("gpt2-xl"), etude.Plan(gpus=4, pp=4, micro_batch=1, global_batch=8))
    run = etude.simulate(made.job, etude.open_system("dgx-h100"))
    rows = []
    for part in run.parts():
        here = part.timed & (part.trace.kind == Kind.COMP) & (part.end_ns > part.start_ns)
        pieces: list[tuple[float, float, str, str]] = []
        for start, end in sorted(zip(part.start_ns[here].tolist(), part.end_ns[here].tolist(), strict=True)):
            if pieces and start - pieces[-1][1] < 5e4:  # no gap that could be seen
                pieces[-1] = (pieces[-1][0], max(pieces[-1][1], end), "compute", "")
            else:
                pieces.append((start, end, "compute", ""))
        rows.append((f"rank {run.job.ranks[part.at[0]]}", pieces))
    return lanes("One step of GPT-2 XL on 4 stages of a pipeline, 8 micro-batches: kernels", rows, ms)


def machines() -> str:
    from etude.machine import device_names, open_device

    found = [open_device(name) for name in device_names()]
    points = [(d.memory_bandwidth_bytes_per_s / 1e12, d.peak_flop_per_s["bf16"] / 1e12, "compute", d.name)
              for d in found if "bf16" in d.peak_flop_per_s]  # fmt: skip
    low, high = min(x for x, *_ in points), max(x for x, *_ in points)
    lines = {f"{k} FLOP for each byte": [(low, low * k), (high, high * k)] for k in (100, 300)}
    top = max(y for _, y, *_ in points)
    return plot("Devices of the catalogue: dense bf16 rate against memory bandwidth",
                Axis("TB/s", low * 0.8, high * 1.25, log=True), Axis("TFLOP/s", 1, top * 2, log=True), lines,
                points=points)  # fmt: skip


def micro() -> str:
    drawn = []
    for pattern in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ring", "incast"):
        do(f"generate micro {pattern} --ranks 8 --bytes 64MB -o {pattern}")
        ns = max(row["finish_ns"] for row in ask(f"simulate {pattern} --system dgx-h100 --network flow")["ranks"])
        drawn.append(Bar(pattern, [("communication", ns, "")], f"{ns / 1e3:.0f} µs"))
    return bars("One round of 64 MB for each of 8 H100, on links that share", drawn)


def synthesis() -> str:
    """A job learned from 8 ranks against the one that is generated for as many as are asked for."""
    do("generate gpt2 --gpus 8 --tp 2 -o learned-from")
    do("learn learned-from --times-on dgx-h100 -o model.json")
    drawn = []
    for ranks in (8, 16, 32):
        do(f"generate gpt2 --gpus {ranks} --tp 2 -o real{ranks}")
        do(f"generate learned model.json --ranks {ranks} -o made{ranks}")
        for name, colour in (("real", "idle"), ("made", "compute")):
            rows = ask(f"simulate {name}{ranks} --system dgx-h100")["ranks"]
            ns = max(row["finish_ns"] for row in rows)
            drawn.append(Bar(f"{ranks} ranks, {name}", [(colour, ns, "")], ms(ns)))
    return bars("Simulated step of generated jobs and of jobs made from a model of 8 ranks", drawn,
                (("generated for so many ranks", "idle"), ("made from what was learned", "compute")))  # fmt: skip


def serving() -> str:
    lines: dict[str, list[tuple[float, float]]] = {"first token": [], "each further token": []}
    for batch in (1, 2, 4, 8, 16, 32, 64):
        found = ask(f"predict qwen3-8b --serve --prefill 1024 --decode 8 --batch {batch} --system dgx-h100")
        for name, key in zip(lines, ("ttft_ns", "tpot_ns"), strict=True):
            lines[name].append((batch, found[key]["mean"] / 1e6))
    return plot("Qwen3 8B on one H100, prompts of 1,024 tokens: time by batch", Axis("batch", 0.9, 70, log=True),
                Axis("ms", 3, 3000, log=True), lines)  # fmt: skip


def fabric() -> str:
    from etude.extend import topology
    from etude.machine import open_system
    from etude.tell.view.fabric_svg import fabric_svg

    near = topology.Wire(bytes_per_s=450e9, latency_ns=300)
    far = topology.Wire(bytes_per_s=50e9, latency_ns=500)
    graph = topology.rail_clos(4, 8, scale_up=near, scale_out=far, nodes_per_leaf=2, spines=4, up=far)
    return fabric_svg(open_system("dgx-h100").resized(32).replace(name="rails"), graph)


PICTURES: dict[str, Callable[[], str]] = {
    "tutorial-path": tutorial_path, "case-study": case_study, "requests": requests, "timeline": timeline,
    "machines": machines, "micro": micro, "synthesis": synthesis, "serving": serving,
    "fabric": fabric,
}  # fmt: skip
