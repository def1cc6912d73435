"""Are the graphs of programs right about what causes what? Known delays in four programs, one of two ranks.

    python benchmarks/validate_graphs.py                     on a GPU, if there is one; else on the CPU
    python benchmarks/validate_graphs.py --only ranks --delay 100% --repeats 12

Each program is validated as by `etude validate`: recorded, run again with delays that no profiler sees, and the changes
compared with those that its graph predicts. Then the same measurements are held against the graph without its order:
on a GPU the edges between kernels of a stream are removed, and the streams as lanes; on a CPU the same of threads. What
is left launches, and knows nothing of what waits for what.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from etude.base.outputs import Place
from etude.capture import opening
from etude.decide.validate import Validated, ValidateOptions, predicted_again, validate
from etude.decide.validate.asked import length_of
from etude.decide.validate.scoring import PlaceResult
from etude.model.job import Job
from etude.model.schema import Why
from etude.model.trace import Trace

COMMON = """
import os, sys, torch, torch.nn as nn
import torch.nn.functional as F
torch.manual_seed(0)
gpu = torch.cuda.is_available() and "RANK" not in os.environ
device = "cuda" if gpu else "cpu"
if not gpu:
    torch.set_num_threads(1)
STEPS = 100_000

class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

class Decoder(nn.Module):
    def __init__(self, layers, d, heads, words):
        super().__init__()
        self.embed, self.layers = nn.Embedding(words, d), nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, words)
    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))
"""
"""What the programs share. A program never ends by itself: `validate` ends it."""

DECODER = """
layers, d, batch, length = (24, 1536, 8, 512) if gpu else (4, 128, 4, 64)
model = Decoder(layers, d, d // 64, 8192 if gpu else 512).to(device)
optimizer = torch.optim.AdamW(model.parameters(), fused=gpu)
for _ in range(STEPS):
    ids = torch.randint(0, model.embed.num_embeddings, (batch, length + 1), device=device)
    with torch.autocast(device, torch.bfloat16, enabled=gpu):
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
"""On a GPU the device is busy throughout: a spin of the host is hidden."""

SMALL = """
model = Decoder(12 if gpu else 6, 256 if gpu else 64, 4, 512).to(device)
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(STEPS):
    ids = torch.randint(0, 512, (4, 65), device=device)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    loss.item()
"""
"""Many small kernels: on a GPU the host is what takes the time, and each step waits for its device."""

CONV = """
width = 64 if gpu else 16
class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.one, self.two, self.norm = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c)
    def forward(self, x):
        return F.relu(x + self.two(F.relu(self.norm(self.one(x)))))
model = nn.Sequential(nn.Conv2d(3, width, 7, 2, 3), *(Residual(width) for _ in range(16 if gpu else 4)),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100)).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
side, batch = (128, 64) if gpu else (32, 8)
for _ in range(STEPS):
    images, labels = torch.randn(batch, 3, side, side), torch.randint(0, 100, (batch,))
    loss = F.cross_entropy(model(images.to(device)), labels.to(device))
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
"""The host makes its images, copies them, and waits for the copy: in part hidden behind the device."""

RANKS = """
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.parallel.DistributedDataParallel(Decoder(4, 128, 4, 512), bucket_cap_mb=1)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(STEPS):
    ids = torch.randint(0, 512, (2 + 3 * rank, 65))
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
"""Rank 1 has more to do than rank 0, which waits for it: a spin of rank 0 is hidden, one of rank 1 is not."""

PROGRAMS = {"decoder": (DECODER, 1), "small": (SMALL, 1), "conv": (CONV, 1), "ranks": (RANKS, 2)}
ORDER = (Why.STREAM, Why.PROGRAM, Why.EVENT, Why.TENSOR)


def command(name: str, folder: Path) -> list[str]:
    text, ranks = PROGRAMS[name]
    script = folder / f"{name}.py"
    script.write_text(COMMON + text)
    if ranks == 1:
        return [sys.executable, str(script)]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(script)]


def without_order(job: Job) -> Job:
    """The graph with nothing that orders the work of a stream, or, without a device, of a thread."""
    return job.replace(traces=tuple(map(_without_order, job.traces)))


def _without_order(trace: Trace) -> Trace:
    on_device = (trace.cpu == 0).any()
    of_edge = np.repeat(np.arange(len(trace)), np.diff(trace.data_start))
    there = (trace.cpu[of_edge] == 0) if on_device else np.ones(len(of_edge), np.bool_)
    dropped = there & np.isin(trace.data_why, [int(why) for why in ORDER])
    kept = np.bincount(of_edge[~dropped], minlength=len(trace))
    lane = np.where(trace.cpu == 0, -1, trace.lane) if on_device else np.full(len(trace), -1)
    return trace.replace(
        data_start=np.append(0, np.cumsum(kept)), data=trace.data[~dropped], data_why=trace.data_why[~dropped],
        lane=lane.astype(np.int32),
    )  # fmt: skip


def show(name: str, found: Validated, broken: Validated) -> None:
    step = found.step_ns
    print(f"{name}: step {step['measured'] / 1e6:.2f} ms, predicted {step['predicted'] / 1e6:.2f} ms; score "
          f"{found.score:.2f}, without order {broken.score:.2f}")  # fmt: skip
    for one, other in zip(found.places, broken.places, strict=True):
        it = one.measured
        print(f"    {one.where:<28} injected {it.injected_ns / 1e6:>8.3f}  measured {it.change_ns / 1e6:>+8.3f} ± "
              f"{it.spread_ns / 1e6:<7.3f} predicted {one.predicted_ns / 1e6:>+8.3f} ({_said(one)})"
              f"   without order {other.predicted_ns / 1e6:>+8.3f} ({_said(other)})", flush=True)  # fmt: skip


def _said(one: PlaceResult) -> str:
    return "yes" if one.within else "NO"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PROGRAMS, action="append")
    parser.add_argument("--delay", action="append", help="of `etude validate`; by default 50%%")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("-o", "--out", type=Path, help="folder for recordings and results")
    given = parser.parse_args()
    options = ValidateOptions(delays=tuple(map(length_of, given.delay or ["50%"])), repeats=given.repeats)
    right = right_broken = total = 0
    with tempfile.TemporaryDirectory() as place:
        for name in given.only or PROGRAMS:
            folder = (given.out or Path(place)) / name
            folder.parent.mkdir(parents=True, exist_ok=True)
            found = validate(command(name, Path(place)), options, Place(folder, force=True))
            record = json.loads((folder / "validate.json").read_bytes())
            broken = predicted_again(record, without_order(opening.open(folder / "run")))
            show(name, found, broken)
            right += sum(one.within for one in found.places)
            right_broken += sum(one.within for one in broken.places)
            total += len(found.places)
    print(f"all: {right} of {total} changes predicted within 15% ({right / total:.0%}), without order {right_broken} "
          f"({right_broken / total:.0%})")  # fmt: skip


if __name__ == "__main__":
    main()
