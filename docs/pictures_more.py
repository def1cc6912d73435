"""Pictures of models and mechanisms: see docs/pictures.py."""

from collections.abc import Callable
from typing import Any

from drawing import CYCLE, Axis, Bar, bars, lanes, plot
from pictures import ROOT, ask, do, ms, need

from etude.base.units import format_bytes

ACTIONS = {"F": "compute", "B": "communication", "I": "communication", "W": "good", "R": "memory", "U": "other"}


def gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


def collective_bandwidth() -> str:
    from etude.cost.collectives import collective_time_ns
    from etude.machine import open_system
    from etude.model.schema import Collective

    sizes = [1 << k for k in range(10, 33)]
    lines = {}
    for ranks in (8, 64, 512):
        system = open_system("dgx-h100").resized(ranks)
        times = collective_time_ns(system, Collective.ALL_REDUCE, sizes, range(ranks))
        factor = 2 * (ranks - 1) / ranks
        lines[f"{ranks} ranks"] = [(size, size / int(ns) * factor) for size, ns in zip(sizes, times, strict=True)]
    return plot("Bus bandwidth of an all-reduce on dgx-h100, by size", Axis("bytes", 1e3, 5e9, _bytes, log=True),
                Axis("GB/s", 0, 480), lines)  # fmt: skip


def _bytes(value: float) -> str:
    return format_bytes(int(value))


def algorithms() -> str:
    from etude.cost.collectives import collective_time_ns
    from etude.machine import open_system
    from etude.model.schema import Collective

    system, sizes = open_system("dgx-h100").resized(64), [1 << k for k in range(10, 31, 2)]
    lines = {}
    for name in ("ring", "tree", "auto"):
        times = collective_time_ns(system, Collective.ALL_REDUCE, sizes, range(64), name)
        lines[name] = [(size, int(ns) / 1e3) for size, ns in zip(sizes, times, strict=True)]
    return plot("An all-reduce over 64 H100: small messages want few steps, large ones want few bytes",
                Axis("bytes", 1e3, 1.1e9, _bytes, log=True), Axis("µs", 10, 3e4, log=True), lines)  # fmt: skip


def schedules() -> str:
    from etude.make.generate.schedules import schedule, times

    rows: list[tuple[str, list[tuple[float, float, str, str]]]] = []
    for name in ("gpipe", "1f1b", "zb2p"):
        s = schedule(name, ranks=4, micro_batches=8)
        t = times(s)
        for rank in range(4):
            row = slice(int(s.start[rank]), int(s.start[rank + 1]))
            pieces = zip(s.order(rank), t.begin[row], t.end[row], strict=True)
            drawn = [(float(b), float(e), _action(what), what.lstrip("0123456789")) for what, b, e in pieces]
            rows.append((f"{name}, rank {rank}", drawn))
    entries = (("forward", "compute"), ("backward (of inputs, where it is split)", "communication"),
               ("backward of weights", "good"))  # fmt: skip
    return lanes("Three schedules of 8 micro-batches on 4 ranks", rows, lambda v: f"{v:g}", entries, labels=True)


def _action(what: str) -> str:
    return ACTIONS.get(what.lstrip("0123456789")[0], "other")


def energy() -> str:
    points = []
    for clock in (600, 800, 1000, 1200, 1400, 1600, 1800, 1980):
        base = "energy qwen3-8b --serve --prefill 2048 --decode 32 --batch 16 --system dgx-h200"
        found = ask(f"{base} --clock {clock}MHz")
        points.append((found["time_ns"] / 1e9, found["energy_j"], "compute", f"{clock} MHz"))
    times, joules = [p[0] for p in points], [p[1] for p in points]
    line = {"clock from 600 to 1980 MHz": [(p[0], p[1]) for p in points]}
    return plot("Energy and time of serving a batch of Qwen3 8B on an H200, by clock",
                Axis("s", 0, max(times) * 1.05), Axis("J", 0, max(joules) * 1.1), line, points=points)  # fmt: skip


def serve() -> str:
    rates = ask("serve qwen3-8b --system dgx-h100 --rate 1..40 --count 200 --slo ttft=1s,tpot=50ms")["rates"]
    lines = {"first token, p99": [(r["rate_rps"], r["ttft_s"]["p99"] * 1e3) for r in rates],
             "time for a token, p99": [(r["rate_rps"], r["tpot_s"]["p99"] * 1e3) for r in rates]}  # fmt: skip
    high = max(y for line in lines.values() for _, y in line)
    return plot("Tails of one replica of Qwen3 8B on an H100, by rate", Axis("requests a second", 0, 40),
                Axis("ms", 0, high * 1.05), lines)  # fmt: skip


def fleet() -> str:
    do('fleet llama3-405b --gpus 16384 --tp 8 --pp 16 --system dgx-h100 --days 14 --faults llama3 '
       '--checkpoint "local:5min,remote:1h" --recover restart -o fleet')  # fmt: skip
    rows = ask(
        'query fleet "select floor(start_s / 86400) as day, state, sum(end_s - start_s) as s from states group by all"'
    )
    colours = {"train": "compute", "redo": "bad", "detect": "other", "restart": "communication", "idle": "idle",
               "checkpoint": "memory"}  # fmt: skip
    found = [name for name in colours if any(row["state"] == name for row in rows)]
    drawn = []
    for day in range(14):
        spent = {row["state"]: row["s"] / 3600 for row in rows if row["day"] == day}
        drawn.append(Bar(f"day {day + 1}", [(colours[k], spent.get(k, 0.0), k) for k in found],
                         f"{spent.get('train', 0.0) / (sum(spent.values()) or 1):.1%} training"))  # fmt: skip
    return bars("Two weeks of Llama 3 405B on 16,384 GPUs with faults", drawn, [(k, colours[k]) for k in found])


def search() -> str:
    found = ask("search llama3-8b --gpus 16 --system dgx-h100 --over tp=1|2|4,pp,zero --score step,memory")
    front = sorted((row["step_time_ns"] / 1e9, row["memory_peak_bytes"] / 1e9) for row in found["frontier"])
    points = [
        (row["step_time_ns"] / 1e9, row["memory_peak_bytes"] / 1e9, "idle", row["flags"]) for row in found["rows"]
    ]
    points += [(*point, "bad", "frontier") for point in front]
    return plot("Plans of Llama 3 8B on 16 H100: step time against memory, and the frontier",
                Axis("step, s", 0.6, max(p[0] for p in points) * 1.05), Axis("GB", 0, 80), {"frontier": front},
                points=points, steps=True)  # fmt: skip


def edits() -> str:
    drawn = []
    for edit in ("compress group=dp ratio=2", "speed op=aten::mm by=1.3",
                 "merge s=2 group=dp", "overlap group=dp stream=31"):  # fmt: skip
        found = ask(f'predict llama3-8b --gpus 64 --zero 3 --system dgx-a100 --edit "{edit}"')
        before, after = found["baseline"]["step_time_ns"], found["edited"]["step_time_ns"]
        drawn += [
            Bar(
                edit if len(edit) < 40 else edit[:38] + "…",
                [("compute", after, "")],
                f"{ms(after)}, x{before / after:.3f}",
            )
        ]
    drawn.insert(0, Bar("as it is", [("idle", before, "")], ms(before)))
    return bars("One step of Llama 3 8B on 64 A100, edited", drawn, left=270)


def tiers() -> str:
    rooms = ",".join(f"{k}GiB" for k in (2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24))
    lines = {}
    for model, bits in (("qwen3-30b-a3b", 4.5), ("llama3-8b", 16)):
        found = ask(f"ops place {model} --room {rooms} --bits {bits} --device rtx4090 --host desktop")["rooms"]
        lines[model] = [(row["room_bytes"] / 2**30, row["tokens_per_s"]) for row in found]
    high = max(y for line in lines.values() for _, y in line)
    return plot("Tokens a second of one sequence by the room that the device has", Axis("GiB", 0, 24),
                Axis("tokens/s", 0, high * 1.05), lines)  # fmt: skip


def data() -> str:
    points = []
    for rate in (0.5, 1, 2, 4, 8, 16):
        found = ask(
            f'predict llama3-8b --gpus 8 --zero 3 --steps 4 --system dgx-h100 --edit "data sample=2GB read={rate}GB/s ratio=4 decode=50GB/s"'
        )
        points.append((rate, found["edited"]["step_time_ns"] / 1e9))
    return plot("A step of Llama 3 8B on 8 H100 whose samples are read at this rate", Axis("GB/s", 0.4, 20, log=True),
                Axis("s", 0, max(p[1] for p in points) * 1.1), {"step": points})  # fmt: skip


def stacks() -> str:
    drawn = []
    for name in ("none", "default", "nemo", "megatron", "torchtitan"):
        found = ask(f"predict llama3-8b --gpus 64 --zero 3 --global-batch 64 --system dgx-h100 --stack {name}")
        drawn.append(Bar(name, [("compute", found["step_time_ns"], "")],
                         f"{ms(found['step_time_ns'])}, {found['mfu']:.0%} of the peak"))  # fmt: skip
    return bars("One step of Llama 3 8B on 64 H100 under several stacks", drawn)


def simulate() -> str:
    drawn = []
    for name, flags in (("as planned", ""), ("one rank 1.2 x slower", "--slow-rank 3=1.2"),
                        ("links are shared", "--network flow")):  # fmt: skip
        row = ask(f"simulate {need('llama')} --system dgx-h100 {flags}")["ranks"][0]
        pieces = [(c, row[k], k) for k, c in (("compute_ns", "compute"), ("exposed_comm_ns", "communication"),
                                              ("idle_ns", "idle"))]  # fmt: skip
        drawn.append(Bar(name, pieces, ms(row["span_ns"])))
    return bars("Llama 3 8B on 16 H100, rank 0", drawn,
                (("computing", "compute"), ("exposed communication", "communication"), ("idle", "idle")))  # fmt: skip


def generate() -> str:
    from etude.make.generate import Plan
    from etude.make.generate import generate as make
    from etude.make.generate.model import open_model

    drawn = []
    colours = dict(zip(("weights", "gradients", "optimizer", "activations"), CYCLE, strict=False))
    for zero in (0, 1, 2, 3):
        found = make(open_model("llama3-8b"), Plan(gpus=16, zero=zero, micro_batch=1, global_batch=16)).memory[0]
        parts = {name: float(getattr(found, name)) for name in ("weights", "gradients", "optimizer")}
        parts["activations"] = float(found.activation_bytes)
        drawn.append(Bar(f"ZeRO {zero}", [(colours[k], v, k) for k, v in parts.items()], gb(sum(parts.values()))))
    return bars("Memory of a rank: Llama 3 8B on 16 GPUs", drawn, list(colours.items()))


def link() -> str:
    """The dependency graph around a kernel, drawn by `etude graph`."""
    from pathlib import Path

    do(f"graph {need('job')} --around 36 --hops 2 -o graph.svg")
    return Path("graph.svg").read_text()


def studies() -> str:
    drawn = []
    for cluster in ("dgx-h100", "dgx-a100"):
        for zero in (1, 3):
            found = ask(f"predict llama3-8b --gpus 64 --global-batch 128 --seq 4096 --zero {zero} --system {cluster}")
            drawn.append(Bar(f"{cluster}, ZeRO {zero}", [(CYCLE[zero // 2], found["memory_peak_bytes"], "")],
                             f"{gb(found['memory_peak_bytes'])}, {ms(found['step_time_ns'])}"))  # fmt: skip
    return bars("A study: memory and step time of two variants on two clusters", drawn, left=170)


def contention() -> str:
    drawn = []
    for name, flags in (("no disturbance", ""), ("--contention", "--contention"),
                        ("--overlap compute=1.1", "--overlap compute=1.1")):  # fmt: skip
        found = ask(f"predict llama3-8b --gpus 16 --zero 3 --system dgx-h100 {flags}")
        drawn.append(Bar(name, [("compute", found["step_time_ns"], "")], ms(found["step_time_ns"])))
    return bars("A step of Llama 3 8B on 16 H100: kernels beside collectives", drawn, left=190)


def models() -> str:
    from etude.make.generate import Plan
    from etude.make.generate import generate as make
    from etude.make.generate.model import open_model

    drawn = []
    for name in ("gpt2-xl", "llama3-8b", "qwen3-8b", "qwen3-30b-a3b", "llama3-70b"):
        found: Any = make(open_model(name), Plan(gpus=64, zero=3, global_batch=64)).summary()
        drawn.append(Bar(name, [("compute", found["params"] / 1e9, "")], f"{found['params'] / 1e9:.2f} G parameters"))
    return bars("Some models of the catalogue", drawn)


def maps() -> str:
    from etude.make.generate.maps import Domain

    cells = Domain((8192, 8192), (4, 4)).halo(1).sum(axis=0)
    drawn = [
        Bar(f"rank {rank}", [("communication", float(count), "")], f"{count} cells") for rank, count in enumerate(cells)
    ]
    return bars("Cells that each of 16 ranks receives: a domain of 8192 x 8192, halo of 1", drawn)


def placement() -> str:
    """How much of a ring's time each placement of 16 ranks on two nodes takes."""
    from etude.cost.collectives import collective_time_ns
    from etude.machine import open_system
    from etude.model.schema import Collective

    system = open_system("dgx-h100").resized(64)
    drawn = []
    for name, group in (("8 in one node", range(8)), ("4 + 4 in two nodes", (0, 1, 2, 3, 8, 9, 10, 11)),
                        ("one in each of 8 nodes", range(0, 64, 8))):  # fmt: skip
        ns = int(collective_time_ns(system, Collective.ALL_REDUCE, [1 << 28], list(group))[0])
        drawn.append(Bar(name, [("communication", ns, "")], ms(ns)))
    return bars("An all-reduce of 256 MiB over 8 ranks by where they are", drawn, left=190)


def sections() -> str:
    found = ask(f"predict --sections {ROOT}/examples/sections/distill.yaml --system dgx-h100 --stack none")
    drawn = [Bar(f"{name}, {row['ranks']} ranks", [("compute", row["model_flops"], "")],
                 f"{row['model_flops'] / 1e15:.3g} P operations, {row['mfu']:.0%} of the peak")
             for name, row in found["sections"].items()]  # fmt: skip
    return bars("The sections of a distillation step", drawn)


PICTURES: dict[str, Callable[[], str]] = {
    "collective-bandwidth": collective_bandwidth, "algorithms": algorithms, "schedules": schedules, "energy": energy,
    "serve": serve, "fleet": fleet, "search": search, "edits": edits, "tiers": tiers, "data": data, "stacks": stacks,
    "simulate": simulate, "generate": generate, "link": link, "studies": studies, "contention": contention,
    "models": models, "maps": maps, "placement": placement, "sections": sections,
}  # fmt: skip
