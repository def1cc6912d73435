"""How close replays come on a GPU: programs and their replays take turns on one machine.

    etude replay ../shared/measured/replay/NAME --plan /tmp/plans/NAME        for each recording, here
    python benchmarks/fidelity_replay_gpu.py /tmp/plans STEPS.csv             there: needs PyTorch and NumPy alone

The programs are written here from what `steps.csv` says of them (layers, width, optimizer): their recordings have the
same operators, one by one. Of `record_host.py` those take part that have a plan there. Each turn runs the program
without a profiler, then `python -m etude.replay` does what it does by default, then with `--host fast`. Two errors are
printed: against the program on this machine, and against the step in `steps.csv`, which another machine took.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import record_host
import torch
from torch import nn
from torch.nn import functional

from etude.run.replay.playing import PlayerOptions, play
from etude.run.replay.program import load


class Block(nn.Module):
    def __init__(self, width: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, ffn, bias=False), nn.Linear(ffn, width, bias=False)
        self.heads = heads

    def forward(self, x):
        b, t, d = x.shape
        parts = self.qkv(self.norm1(x)).split(d, -1)
        q, k, v = (part.view(b, t, self.heads, d // self.heads).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def gpt(row: dict[str, str]) -> Callable[[], None]:
    """A training step as a row of `steps.csv` describes it."""
    torch.manual_seed(0)
    layers, width, words = int(row["layers"]), int(row["hidden"]), int(row["vocab"])
    with torch.device("cuda"):
        body = [Block(width, int(row["heads"]), int(row["ffn"])) for _ in range(layers)]
        last = [nn.LayerNorm(width), nn.Linear(width, words, bias=False)]
        model = nn.Sequential(nn.Embedding(words, width), *body, *last).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **{row["optimizer"].removeprefix("adamw_"): True})
    ids = torch.randint(0, words, (int(row["batch"]), int(row["seq"])), device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(ids).view(-1, words).float(), ids.view(-1)).backward()
        optimizer.step()

    return step


def small(make: Callable[[], record_host.Parts]) -> Callable[[], None]:
    torch.manual_seed(0)
    with torch.device("cuda"):
        return record_host.step_of(make())


def step_ms(step: Callable[[], None], count: int) -> float:
    torch.cuda.synchronize()
    gc.collect()
    gc.disable()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    gc.enable()
    return (time.perf_counter() - begin) / count * 1e3


def replay_ms(file: Path, host: str) -> float:
    found = play(load(file), PlayerOptions(iterations=15, host=host, device="cuda"))
    gc.collect()
    torch.cuda.empty_cache()
    return found["step_ns"]["replayed"] / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", type=Path, help="folder of NAME/rank0.program")
    parser.add_argument("steps", type=Path, help="steps.csv")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path, help="all times, turn by turn")
    asked = parser.parse_args()
    rows = {row["name"]: row for row in csv.DictReader(asked.steps.open())}
    programs: dict[str, Callable[[], Callable[[], None]]] = {name: partial(gpt, row) for name, row in rows.items()}
    programs |= {one.__name__: partial(small, one) for one in (*record_host.PROGRAMS, *record_host.HELD_OUT)}
    programs = {name: made for name, made in programs.items() if (asked.plans / name).is_dir()}
    found: dict[str, dict[str, list[float]]] = {name: {"program": [], "default": [], "fast": []} for name in programs}
    for _ in range(asked.turns):
        for name, make in programs.items():
            step, file = make(), asked.plans / name / "rank0.program"
            step_ms(step, 5)
            count = max(round(1000 / step_ms(step, 5)), 15)  # a second: until the clock of the device has settled
            found[name]["program"].append(step_ms(step, count))
            found[name]["default"].append(replay_ms(file, ""))
            found[name]["fast"].append(replay_ms(file, "fast"))
            found[name]["program"].append(step_ms(step, count))
            print(
                name, *(f"{which} {each[-1]:.2f}" for which, each in found[name].items()), file=sys.stderr, flush=True
            )
            del step
            gc.collect()
            torch.cuda.empty_cache()
    print(f"{'program':<18}{'steps.csv, ms':>14}{'program here':>14}{'replay':>9}{'error':>8}{'to csv':>8}"
          f"{'fast':>9}{'error':>8}{'to csv':>8}")  # fmt: skip
    errors: dict[str, list[float]] = {}
    for name in programs:
        known = [float(rows[name]["loop_step_wall_ns"]) / 1e6] if name in rows else []
        here, default, fast = (statistics.median(found[name][which]) for which in ("program", "default", "fast"))
        line = f"{name:<18}{f'{known[0]:.2f}' if known else '':>14}{here:>14.2f}"
        kind = "" if known else "small, "
        for which, took in (("", default), ("fast ", fast)):
            line += f"{took:>9.2f}"
            for against, wanted in (("here", here), *(("csv", wanted) for wanted in known)):
                error = 100 * (took / wanted - 1)
                errors.setdefault(f"{kind}{which}{against}", []).append(abs(error))
                line += f"{error:>+7.1f}%"
            line += "" if known else " " * 8
        print(line)
    print("mean error: " + "; ".join(f"{which} {statistics.mean(each):.1f}%" for which, each in errors.items())
          + f"; medians of {asked.turns} turns")  # fmt: skip
    if asked.json is not None:
        asked.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
