"""Draws the pictures of the pages from what the commands say: `python docs/pictures.py [NAME...] [--screens]`.

The inputs are the embedded recording and generated jobs, so that the same code draws the same bytes. `--screens` also
takes the pictures of pages in a headless Chromium. docs/pictures_more.py has those of models and mechanisms,
docs/pictures_pages.py those of single pages, docs/pictures_tools.py those of recordings, formats and ASTRA-sim.
"""

import contextlib
import io
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from drawing import Axis, Bar, bars, lanes, plot

from etude.base.units import format_bytes

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "pictures"
LLAMA = "llama3-8b --gpus 16 --tp 4 --pp 2 --micro-batch 1 --global-batch 16 --zero 1"
MADE = {
    "job": "link run -o job",
    "llama": f"generate {LLAMA} -o llama",
    "slow.parquet": "simulate llama --system dgx-h100 --slow-rank 3=1.2 --timing slow.parquet",
}
PARTS = (("computing", "compute"), ("exposed communication", "communication"), ("copies", "memory"), ("idle", "idle"))


def need(name: str) -> str:
    """A file of the current folder, made when it is first asked for."""
    if not Path("run").exists():
        do("demo --recording -o run")
    if not Path(name).exists():
        do(MADE[name])
    return name


def do(line: str) -> str:
    """What a command prints."""
    from etude.surface.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(shlex.split(line))
    if code > 1:
        raise SystemExit(f"etude {line}: {err.getvalue()}")
    return out.getvalue()


def ask(line: str) -> Any:
    return json.loads(do(f"{line} --json"))


def ms(ns: float) -> str:
    return f"{ns / 1e9:.3g} s" if ns >= 1e9 else f"{ns / 1e6:.3g} ms"


def breakdown() -> str:
    rows = [("the recording", ask(f"breakdown {need('job')}")["ranks"][0])]
    rows += [(f"Llama 3 8B, rank {row['rank']}", row)
             for row in ask(f"breakdown {need('llama')} --timing {need('slow.parquet')}")["ranks"][::4]]  # fmt: skip
    drawn = []
    for name, row in rows:
        keys = ("compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")
        pieces = [(colour, row[key] / row["span_ns"], what) for key, (what, colour) in zip(keys, PARTS, strict=True)]
        drawn.append(Bar(name, pieces, f"of {ms(row['span_ns'])}"))
    return bars("Where the device's time goes", drawn, PARTS, left=170)


def idle() -> str:
    rows = ask(f"idle {need('job')}")["rows"]
    colours = {"host": "host", "synchronisation": "other", "launch": "launch"}
    drawn = [Bar(row["cause"], [(colours.get(row["cause"], "idle"), row["time_ns"], "")],
                 f"{ms(row['time_ns'])} in {row['gaps']} gaps") for row in rows]  # fmt: skip
    return bars("Why the device is idle: causes of the recording's gaps", drawn)


def kernels() -> str:
    rows = ask(f"kernels {need('job')}")[:9]
    drawn = [Bar(_short(row["name"]), [("compute", row["total_ns"], row["name"])],
                 f"{row['total_ns'] / 1e3:.0f} µs, {row['count']} calls") for row in rows]  # fmt: skip
    return bars("Kernels of the recording by time", drawn, left=290)


def _short(name: str, most: int = 38) -> str:
    for prefix in ("void ", "at::native::", "(anonymous namespace)::", "cutlass::"):
        name = name.replace(prefix, "")
    return name if len(name) <= most else name[: most - 1] + "…"


def collectives() -> str:
    rows = ask(f"collectives {need('llama')} --timing {need('slow.parquet')}")
    rows = sorted(rows, key=lambda row: -row["total_transfer_ns"] - row["total_wait_ns"])[:7]
    drawn = []
    for row in rows:
        name = f"{row['collective']} of {row['group_size']}, {format_bytes(row['size_bytes'])}"
        pieces = [("communication", row["total_transfer_ns"], "transfer"), ("idle", row["total_wait_ns"], "wait")]
        drawn.append(Bar(name, pieces, f"{row['busbw_bytes_per_s'] / 1e9:.0f} GB/s bus"))
    return bars("Transfer apart from waiting, all calls; rank 3 is slow", drawn,
                (("transfer", "communication"), ("waiting for members", "idle")), left=230)  # fmt: skip


def critical_path() -> str:
    found = ask(f"critical-path {need('llama')} --timing {need('slow.parquet')}")["path"]
    begin = found[0]["start_ns"]
    ranks = sorted({piece["rank"] for piece in found})
    colours = {"compute": "compute", "communication": "communication", "host": "host", "memory": "memory"}
    rows = []
    for rank in ranks:
        pieces = [(p["start_ns"] - begin, p["end_ns"] - begin, colours.get(p["kind"], "other"), p["name"])
                  for p in found if p["rank"] == rank and p["end_ns"] > p["start_ns"]]  # fmt: skip
        rows.append((f"rank {rank}", _joined(pieces)))
    return lanes("The critical path from rank to rank: Llama 3 8B on 16 GPUs, rank 3 slow", rows, ms,
                 (("compute", "compute"), ("communication", "communication")))  # fmt: skip


def _joined(pieces: list[tuple[float, float, str, str]], least: float = 1e6) -> list[tuple[float, float, str, str]]:
    """Short pieces that follow one another as one, of the colour that has the most time."""
    done: list[tuple[float, float, str, str]] = []
    for piece in pieces:
        if done and piece[0] - done[-1][1] < 1e4 and (piece[2] == done[-1][2] or piece[1] - piece[0] < least / 5):
            done[-1] = (done[-1][0], piece[1], done[-1][2], "")
        else:
            done.append(piece)
    return done


def stragglers() -> str:
    rows = ask(f"breakdown {need('llama')} --timing {need('slow.parquet')}")["ranks"]
    least = min(row["compute_ns"] for row in rows)
    drawn = [Bar(f"rank {row['rank']}", [("bad" if row["rank"] == 3 else "compute", row["compute_ns"], "")],
                 f"{row['compute_ns'] / least:.2f} x the fastest") for row in rows[:8]]  # fmt: skip
    return bars("Compute time by rank: rank 3 does the same work in 1.2 times the time", drawn)


def diagnose() -> str:
    """What removing each cause buys, of a job in which one rank is slow."""
    found = ask(f"diagnose {need('llama')} --timing {need('slow.parquet')}")["findings"]
    drawn = [Bar(f"{one['kind']}, {_ranks(one['ranks'])}", [("bad" if one["kind"] == "slow_rank" else "communication",
                 one["cost_ns"], "")], f"{ms(one['cost_ns'])}, {one['share']:.1%} of the run, "
                 f"confidence {one['confidence']:.0%}") for one in found]  # fmt: skip
    return bars("Findings by what removing the cause buys: Llama 3 8B on 16 GPUs, rank 3 slow", drawn, left=230)


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"


def trend() -> str:
    with contextlib.chdir(ROOT):
        found = ask("trend examples/step_times.csv")
    steps = found["steps"]
    lines = {"step time": list(zip(steps, [v / 1e6 for v in found["series"]], strict=True)),
             "trend": list(zip(steps, [v / 1e6 for v in found["trend"]], strict=True))}  # fmt: skip
    high = max(found["series"]) / 1e6
    return plot(found["findings"][0]["text"], Axis("step", 0, max(steps)), Axis("ms", 80, high * 1.02), lines)


def memory() -> str:
    from etude.make.generate import Plan, generate
    from etude.make.generate.model import open_model

    lines = {}
    for name in ("1f1b", "gpipe", "zbv"):
        plan = Plan(gpus=4, pp=4, global_batch=8, micro_batch=1, schedule=name)
        made = generate(open_model("gpt2-xl"), plan).memory[0].over_time()
        lines[name] = [(i / (len(made) - 1), size / 1e9) for i, size in enumerate(made.tolist())]
    high = max(size for line in lines.values() for _, size in line)
    return plot("Memory of the first rank over a step: GPT-2 XL, 4 stages, 8 micro-batches",
                Axis("part of the actions", 0, 1), Axis("GB", 0, high * 1.05), lines, steps=True)  # fmt: skip


def roofline() -> str:
    from etude.machine import open_device

    device = open_device("h200")
    rows = [row for row in ask(f"roofline {need('job')} --device h200") if row["flop_per_s"] and row["intensity"]]
    # The dense rate of the type in which most of the recording computes.
    peak = device.peak_flop_per_s[max((row["dtype"] for row in rows), key=[row["dtype"] for row in rows].count)]
    knee = peak / device.memory_bandwidth_bytes_per_s
    roof = [(0.05, 0.05 * device.memory_bandwidth_bytes_per_s), (knee, peak), (1000, peak)]
    colours = {"gemm": "compute", "elementwise": "memory", "attention": "communication"}
    points = [(row["intensity"], row["flop_per_s"], colours.get(row["op_class"], "other"), row["name"]) for row in rows
              if 0.05 < row["intensity"] < 1000 and 1e8 < row["flop_per_s"] < 1e14]  # fmt: skip
    return plot("Operators of the recording below the roof of an H200 (fp32)",
                Axis("FLOP for each byte", 0.05, 1000, log=True), Axis("FLOP/s", 1e8, 2e14, lambda v: f"{v:.0e}", log=True),
                {"roof": roof}, points=points)  # fmt: skip


def compare() -> str:
    drawn = []
    for name, system in (("H100", "dgx-h100"), ("A100", "dgx-a100"), ("H200", "dgx-h200")):
        row = ask(f"simulate {need('llama')} --system {system}")["ranks"][0]
        keys = ("compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")
        pieces = [(colour, row[key], what) for key, (what, colour) in zip(keys, PARTS, strict=True)]
        drawn.append(Bar(name, pieces, ms(row["span_ns"])))
    return bars("One job on three machines, rank 0", drawn, PARTS)


def metrics() -> str:
    rows = {row["metric"]: row for row in ask(f"metrics {need('llama')} --system dgx-h100")["rows"]}
    shares = [row for row in rows.values() if row["unit"] in ("%", "") and 0 <= float(row["value"] or 0) <= 1.0][:8]
    drawn = [Bar(row["metric"], [("compute", float(row["value"]), "")], f"{float(row['value']):.3f}") for row in shares]
    return bars("Ratios of `etude metrics`: Llama 3 8B on 16 H100", drawn, left=230)


PICTURES: dict[str, Callable[[], str]] = {
    "breakdown": breakdown, "idle": idle, "kernels": kernels, "collectives": collectives, "critical-path": critical_path,
    "diagnose": diagnose, "stragglers": stragglers, "trend": trend, "memory": memory, "roofline": roofline, "compare": compare,
    "metrics": metrics,
}  # fmt: skip


def all_pictures() -> dict[str, Callable[[], str]]:
    import gallery_chart
    import pictures_more
    import pictures_pages
    import pictures_tools

    modules = (pictures_more, pictures_pages, pictures_tools, gallery_chart)
    return {**PICTURES, **{name: draw for module in modules for name, draw in module.PICTURES.items()}}


@contextlib.contextmanager
def workshop() -> Iterator[None]:
    """A folder of its own for what is made on the way."""
    with tempfile.TemporaryDirectory(prefix="etude-pictures-") as name, contextlib.chdir(name):
        yield


def main(argv: list[str]) -> int:
    names = [name for name in argv if not name.startswith("-")]
    known = all_pictures()
    if lost := [name for name in names if name not in known]:
        raise SystemExit(f"no picture `{lost[0]}`; known: {', '.join(known)}")
    OUT.mkdir(exist_ok=True)
    with workshop():
        for name in names or known:
            try:
                (OUT / f"{name}.svg").write_text(known[name]())
            except FileNotFoundError as error:
                print(f"{name}.svg stays as it is: {error}", file=sys.stderr)
        if "--screens" in argv:
            import screens

            screens.take(OUT)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
