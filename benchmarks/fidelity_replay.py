"""How close a replay comes to the program that was recorded.

    python benchmarks/fidelity_replay.py fresh                 programs recorded here, one process
    python benchmarks/fidelity_replay.py fresh --ranks 2       the same with DistributedDataParallel over gloo, and
                                                               small programs with experts, FSDP2, DTensor
    ONLY="experts,FSDP2" ROUNDS=15 python benchmarks/fidelity_replay.py fresh --ranks 2
    python benchmarks/fidelity_replay.py captures ../shared/traces/torch_cpu
    python benchmarks/fidelity_replay.py generated             4 of the 64 ranks of a job that never ran, 4 processes
    python benchmarks/fidelity_replay.py measured ../shared/measured/replay RESULTS
    python benchmarks/fidelity_replay.py steps ../shared/measured/replay RESULTS

`fresh` records each program with `etude collect`'s recorder, plans it, and then takes turns: a step of the program
without a profiler, an iteration of the replay, and so on; medians are compared. `captures` plays every capture of a
folder. `measured` compares `RESULTS/NAME/replay.rank0.json`, which `python -m etude.replay` wrote on another machine,
with the step times in `steps.csv` and the sum of kernel times in the recording. `steps` compares what it printed, as
`RESULTS/NAME.json` or `RESULTS/NAME--OPTION.json`, with the step times alone.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import etude
from etude.replay import PlayerOptions, coverage, plan, play, play_together

STEPS = 1
"""Steps that are recorded."""
ROUNDS = int(os.environ.get("ROUNDS", "31"))
"""Turns that count: on a shared machine a median of 15 is still a matter of luck."""
ONLY = os.environ.get("ONLY", "")
"""Names of programs of `fresh`, between commas; all without any."""
THEIRS = "param et_replay 0.5.0 on runs it can do: 12-58 s until ready, 340-1600 MB (stated, not measured here)"


# -- programs recorded here --------------------------------------------------------------------------------------------


def programs() -> dict[str, Callable[[], tuple[object, Callable[[object], None]]]]:
    """Name -> (model, step of it), made when asked for."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.heads = heads

        def forward(self, x):
            b, t, d = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    def gpt(width: int, layers: int, heads: int, words: int, batch: int, tokens: int):
        body = [Block(width, heads) for _ in range(layers)]
        model = nn.Sequential(nn.Embedding(words, width), *body, nn.LayerNorm(width), nn.Linear(width, words))
        ids, target = torch.randint(0, words, (batch, tokens)), torch.randint(0, words, (batch * tokens,))

        def loss(module):
            return functional.cross_entropy(module(ids).view(-1, words), target)

        return model, loss

    def convolutions():
        model = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
            nn.Linear(1024, 10),
        )  # fmt: skip
        x, target = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
        return model, lambda module: functional.cross_entropy(module(x), target)

    def perceptron():
        model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 1024), nn.ReLU(),
                              nn.Linear(1024, 10))  # fmt: skip
        x, target = torch.randn(64, 512), torch.randint(0, 10, (64,))
        return model, lambda module: functional.cross_entropy(module(x), target)

    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTMCell(32, 32), nn.Linear(32, 10)

        def forward(self, x):
            state = None
            for each in x:
                state = self.cell(each, state)
            return self.head(state[0])

    def lstm():
        x, target = torch.randn(12, 8, 32), torch.randint(0, 10, (8,))
        return Unrolled(), lambda module: functional.cross_entropy(module(x), target)

    def small_layers():
        model = nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(32, 32), nn.ReLU())), nn.Linear(32, 10))
        x, target = torch.randn(16, 32), torch.randint(0, 10, (16,))
        return model, lambda module: functional.cross_entropy(module(x), target)

    return {
        "gpt, width 64": lambda: gpt(64, 2, 4, 512, 4, 32),
        "gpt, width 256": lambda: gpt(256, 3, 4, 2000, 2, 128),
        "convolutions": convolutions,
        "perceptron": perceptron,
        "lstm, unrolled": lstm,
        "small layers": small_layers,
    }


def spread(ranks: int) -> dict[str, Callable[[], tuple[object, Callable[[object], None]]]]:
    """Small programs that communicate by themselves: most of their step is Python."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.nn.functional import all_to_all_single
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.nn import functional

    def layers() -> nn.Sequential:
        return nn.Sequential(*(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)) for _ in range(4)))

    x, target = torch.randn(16 * ranks, 64), torch.randn(16 * ranks, 64)

    def loss(module):
        return functional.mse_loss(module(x), target)

    class Experts(nn.Module):
        """As many tokens go to each process; an expert a process."""

        def __init__(self) -> None:
            super().__init__()
            self.routers = nn.ModuleList(nn.Linear(64, ranks) for _ in range(2))
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
                                         for _ in range(2))  # fmt: skip

        def forward(self, x):
            for router, expert in zip(self.routers, self.experts, strict=True):
                weight, chosen = router(x).softmax(-1).max(-1)
                order = chosen.argsort()
                there = all_to_all_single(torch.empty_like(x), x[order])
                back = all_to_all_single(torch.empty_like(x), expert(there))
                x = x + torch.zeros_like(x).index_copy(0, order, back) * weight.unsqueeze(-1)
            return x

    def sharded():
        model = layers()
        for part in (*model, model):
            fully_shard(part)
        return model, loss

    def tensor_parallel():
        model, mesh = layers(), dist.init_device_mesh("cpu", (ranks,))
        plan = {f"{k}.{n}": style() for k in range(4) for n, style in ((0, ColwiseParallel), (2, RowwiseParallel))}
        return parallelize_module(model, mesh, plan), loss

    return {"experts": lambda: (Experts(), loss), "FSDP2": sharded, "tensor parallel": tensor_parallel}


def fresh_here(rank: int, ranks: int, folder: Path) -> list[dict[str, object]]:
    """Each program recorded and replayed by this process, with the others where there are any."""
    import torch
    import torch.distributed as dist

    from etude.replay.communication.calls import Communicator
    from etude.replay.player import Player

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    barrier: Callable[[], None] = (lambda: None) if ranks == 1 else dist.barrier
    rows = []
    several = spread(ranks) if ranks > 1 else {}
    for number, (name, make) in enumerate((programs() | several).items()):
        if ONLY and name not in ONLY.split(","):
            continue
        model, loss = make()
        data_parallel = ranks > 1 and name not in several
        module = torch.nn.parallel.DistributedDataParallel(model) if data_parallel else model
        step = training(model, loss, module)
        run = folder / str(number)
        record(step, run)
        barrier()
        began = time.perf_counter()
        job = etude.open(run)
        program = plan(job, [rank])[0]
        comms = Communicator(program, list(range(ranks)), torch.device("cpu")) if ranks > 1 else None
        player = Player(program, "cpu", comms=comms)
        player.prepare()
        ready_s = time.perf_counter() - began
        fast = Player(program, "cpu", comms=comms, host="fast")
        fast.prepare()
        times = take_turns({"program": step, "replay": player.iteration, "fast": fast.iteration}, barrier)
        rows.append({"program": name, "ready_s": ready_s, **times, "coverage": coverage(program, player.failures)})
    return rows


def training(model: object, loss: Callable[[object], object], module: object = None) -> Callable[[], None]:
    """A step of a program; `module` is what wraps the model."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss(module or model).backward()
        optimizer.step()

    return step


def record(step: Callable[[], None], run: Path) -> None:
    from etude.collect import torch as collect

    with collect.trace(run, steps=STEPS, warmup=3) as recording:
        for _ in range(4 + STEPS):
            step()
            recording.step()


def take_turns(turns: dict[str, Callable[[], None]], barrier: Callable[[], None]) -> dict[str, object]:
    """Medians of the program's step and of its replays, which take turns and take turns in being the first; times on
    the clock, and of the process's own work, which other processes of the machine do not lengthen."""
    import torch

    found: dict[str, list[int]] = {}
    both = list(turns.items())
    gc.collect()
    gc.freeze()
    for number in range(ROUNDS + 2):
        for which, one in both if number % 2 else both[::-1]:
            gc.collect()
            gc.disable()
            barrier()
            with torch.set_grad_enabled(which == "program"):
                begin, worked = time.perf_counter_ns(), time.process_time_ns()
                one()
                took, worked = time.perf_counter_ns() - begin, time.process_time_ns() - worked
            gc.enable()
            if number >= 2:
                found.setdefault(f"{which}_ns", []).append(took)
                found.setdefault(f"{which}_cpu_ns", []).append(worked)
    return {name: int(statistics.median(times)) for name, times in found.items()}


def fresh(ranks: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if ranks == 1:
            everyone = [fresh_here(0, 1, folder)]
        else:
            command = [sys.executable, __file__, "process", str(folder), "--ranks", str(ranks)]
            started = [subprocess.Popen(command, env=os.environ | {"RANK": str(rank)}) for rank in range(ranks)]
            if any(child.wait() for child in started):
                raise SystemExit("a process failed")
            everyone = [json.loads((folder / f"result{rank}").read_text()) for rank in range(ranks)]
    errors, worked, fast = [], [], []
    print(f"{'program':<16}{'program, ms':>12}{'replay, ms':>12}{'error':>8}{'of CPU time':>12}{'host fast':>11}"
          f"{'by time':>9}{'ready, s':>10}")  # fmt: skip
    for rows in zip(*everyone, strict=True):  # a step takes as long as on its slowest rank
        program, replay = max(r["program_ns"] for r in rows), max(r["replay_ns"] for r in rows)
        errors.append(100 * (replay / program - 1))
        worked.append(100 * (sum(r["replay_cpu_ns"] for r in rows) / sum(r["program_cpu_ns"] for r in rows) - 1))
        fast.append(100 * (max(r["fast_ns"] for r in rows) / program - 1))
        covered = min(r["coverage"]["time"] for r in rows)
        print(f"{rows[0]['program']:<16}{program / 1e6:>12.2f}{replay / 1e6:>12.2f}{errors[-1]:>+7.1f}%"
              f"{worked[-1]:>+11.1f}%{fast[-1]:>+10.1f}%{100 * covered:>8.1f}%"
              f"{max(r['ready_s'] for r in rows):>10.1f}")  # fmt: skip
    peak = resource.getrusage(resource.RUSAGE_SELF if ranks == 1 else resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    mean = statistics.mean(map(abs, errors))
    print(f"mean error {mean:.1f}% over {len(errors)} programs, of CPU time {statistics.mean(map(abs, worked)):.1f}%, "
          f"with --host fast {statistics.mean(map(abs, fast)):.1f}%; "
          f"{ranks} processes, medians of {ROUNDS} turns, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; "
          f"largest process {peak:.0f} MB (program and replay)")  # fmt: skip


def process(folder: Path, ranks: int) -> None:
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    rows = fresh_here(rank, ranks, folder)
    (folder / f"result{rank}").write_text(json.dumps(rows))
    dist.destroy_process_group()


# -- captures and measurements -----------------------------------------------------------------------------------------


def captures(folder: Path, iterations: int) -> None:
    names = {m[1] for file in folder.iterdir() if (m := re.match(r"(.*)\.rank\d+\.kineto\.json", file.name))}
    print(f"{'capture':<20}{'ranks':>6}{'calls':>7}{'by time':>9}{'by count':>9}{'step, ms':>10}{'ready, s':>10}"
          f"{'MB':>6}  stand-ins")  # fmt: skip
    for name in sorted(names):
        made = plan(etude.open(folder / name))
        options = PlayerOptions(iterations=iterations, warmup=1, device="cpu", threads=1)
        found = [play(made[0], options)] if len(made) == 1 else play_together(made, options)
        told = [one["coverage"] for one in found]
        lacking = {entry["name"] for one in told for entry in one["stand_ins"]}
        print(f"{name:<20}{len(made):>6}{len(made[0].calls.op):>7}{100 * min(t['time'] for t in told):>8.1f}%"
              f"{100 * min(t['count'] for t in told):>8.1f}%{max(f['step_ns']['replayed'] for f in found) / 1e6:>10.2f}"
              f"{max(f['ready_s'] for f in found):>10.1f}"
              f"{max(f['peak_rss_bytes'] for f in found) / 1e6:>6.0f}  {', '.join(sorted(lacking)) or '-'}",
              flush=True)  # fmt: skip
    print(THEIRS)


def generated(iterations: int) -> None:
    from etude.cli import main as command

    with tempfile.TemporaryDirectory() as name:
        model, job = Path(name) / "tiny.yaml", Path(name) / "job"
        model.write_text("{layers: 4, hidden: 64, heads: 4, ffn: 128, vocab: 256, seq: 32, gated: true, tied: true}\n")
        command(["generate", str(model), "--gpus", "64", "--tp", "2", "--pp", "2", "--micro-batch", "1",
                 "--global-batch", "32", "-o", str(job)])  # fmt: skip
        began = time.perf_counter()
        made = plan(etude.open(job), [0, 1, 2, 3])
        found = play_together(made, PlayerOptions(iterations=iterations, warmup=1, device="cpu", threads=1))
    work, calls = (sum(len(table) for table in tables) for tables in (
        [p.stand_ins.kind for p in made], [p.comms.kind for p in made]))  # fmt: skip
    print(f"ranks 0-3 of 64: {work:,} pieces of work, {calls} communications, of which those inside the four are sent; "
          f"step {max(f['step_ns']['replayed'] for f in found) / 1e6:.1f} ms, "
          f"{time.perf_counter() - began:.1f} s in all, {sum(len(f['failures']) for f in found)} failures")  # fmt: skip


def measured(recordings: Path, results: Path) -> None:
    steps = {row["name"]: row for row in csv.DictReader((recordings / "steps.csv").open())}
    errors, sums = [], []
    print(
        f"{'program':<18}{'step, ms':>9}{'replay, ms':>12}{'error':>8}{'kernels, ms':>12}{'replay, ms':>12}{'error':>8}"
    )
    for name, row in steps.items():
        found = json.loads((results / name / "replay.rank0.json").read_text())
        wanted = float(row["loop_step_wall_ns"])
        errors.append(100 * (found["step_ns"]["replayed"] / wanted - 1))
        recorded, again = (kernels_ns(etude.open(place)) for place in (recordings / name, results / name))
        sums.append(100 * (again / recorded - 1))
        print(f"{name:<18}{wanted / 1e6:>9.2f}{found['step_ns']['replayed'] / 1e6:>12.2f}{errors[-1]:>+7.1f}%"
              f"{recorded / 1e6:>12.2f}{again / 1e6:>12.2f}{sums[-1]:>+7.1f}%")  # fmt: skip
    print(f"mean error of steps {statistics.mean(map(abs, errors)):.1f}%, of sums of kernel times "
          f"{statistics.mean(map(abs, sums)):.1f}%")  # fmt: skip


def steps_alone(recordings: Path, results: Path) -> None:
    rows = {row["name"]: float(row["loop_step_wall_ns"]) for row in csv.DictReader((recordings / "steps.csv").open())}
    errors: dict[str, list[float]] = {}
    print(f"{'program':<18}{'option':<16}{'step, ms':>9}{'replay, ms':>12}{'error':>8}")
    for name, wanted in rows.items():
        for file in sorted((*results.glob(f"{name}.json"), *results.glob(f"{name}--*.json"))):
            option = file.stem.removeprefix(name) or "-"
            took = json.loads(file.read_text())["step_ns"]["replayed"]
            errors.setdefault(option, []).append(100 * (took / wanted - 1))
            print(f"{name:<18}{option:<16}{wanted / 1e6:>9.2f}{took / 1e6:>12.2f}{errors[option][-1]:>+7.1f}%")
    for option, found in errors.items():
        print(f"{option}: mean error {statistics.mean(map(abs, found)):.1f}% over {len(found)} programs")


def kernels_ns(job: etude.Job) -> float:
    """Sum of the times of all kernels in a step."""
    trace = job.traces[0]
    assert job.timing is not None
    start, end = job.timing.block(0)
    steps = len(set(trace.step[trace.step > 0].tolist())) or 1
    return float((end - start)[trace.cpu == 0].sum()) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fresh", "captures", "generated", "measured", "steps", "process"))
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=5)
    asked = parser.parse_args()
    if asked.what == "fresh":
        fresh(asked.ranks)
    elif asked.what == "process":
        process(asked.folders[0], asked.ranks)
    elif asked.what == "captures":
        captures(asked.folders[0], asked.iterations)
    elif asked.what == "generated":
        generated(asked.iterations)
    elif asked.what == "steps":
        steps_alone(*asked.folders)
    else:
        measured(*asked.folders)


if __name__ == "__main__":
    main()
