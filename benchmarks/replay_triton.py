"""A compiled training step whose Triton kernels are played from their sources. Needs a GPU, PyTorch and NumPy alone.

    python benchmarks/replay_triton.py record /tmp/triton               there: records, with sources, and times steps
    etude replay /tmp/triton --trust-code --plan /tmp/triton-plan       here, or there
    python benchmarks/replay_triton.py play /tmp/triton-plan /tmp/triton/step.json

`play` says how many kernels of Triton the program has, what stands in, what is covered, and how far the replayed step
is from the step without the profiler that `record` timed.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from torch import nn
from torch.nn import functional

STEPS, TURNS = 3, 15


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.gate, self.down = (
            nn.Linear(width, 4 * width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def training() -> Callable[[], None]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(1024) for _ in range(4)), nn.Linear(1024, 512)).cuda().to(torch.bfloat16)
    compiled, optimizer = torch.compile(model), torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)
    target = torch.randint(0, 512, (4096,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(compiled(x).float(), target).backward()
        optimizer.step()

    return step


def record(folder: Path) -> None:
    folder.mkdir(parents=True)
    step = training()
    for _ in range(5):
        step()
    took = []
    for _ in range(TURNS):
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        took.append((time.perf_counter_ns() - begin) / STEPS)
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(folder / "triton.rank0.et.json"))
    observer.set_extra_resource_collection(True)
    both = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=both, record_shapes=True, execution_trace_observer=observer) as profiler:
        for number in range(STEPS):
            with torch.profiler.record_function(f"ProfilerStep#{number + 1}"):
                step()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(folder / "triton.rank0.kineto.json"))
    observer.unregister_callback()
    _complete(folder)
    told = {"step_ns": statistics.median(took), "device": torch.cuda.get_device_name(), "torch": torch.__version__}
    (folder / "step.json").write_text(json.dumps(told))
    sources = sorted(path.name for path in folder.glob("*_resources/*.py"))
    print(f"{len(sources)} sources of kernels, step {told['step_ns'] / 1e6:.3f} ms, {told['device']}, {told['torch']}")


def _complete(folder: Path) -> None:
    """The observer does not keep all sources; those of the same names are in Inductor's cache."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    nodes = json.loads((folder / "triton.rank0.et.json").read_text())["nodes"]
    wanted = {one["value"] for node in nodes for one in node["attrs"] if one["name"] == "kernel_file" and one["value"]}
    kept = next(folder.glob("*_resources"))
    for path in Path(cache_dir()).rglob("*.py"):
        if path.name in wanted and not (kept / path.name).exists():
            (kept / path.name).write_text(path.read_text())


def play(plans: Path, step: Path) -> None:
    from etude.run.replay.playing import PlayerOptions
    from etude.run.replay.playing import play as play_program
    from etude.run.replay.program import TRITON_SPACE, load

    program = load(plans / "rank0.program")
    kernels = [name for name in program.ops if name.startswith(TRITON_SPACE)]
    launches = sum(name in kernels for name in (program.ops[int(op)] for op in program.calls.op))
    wanted = json.loads(step.read_text())["step_ns"]
    for host in ("", "fast"):
        found = play_program(program, PlayerOptions(iterations=TURNS, device="cuda", host=host, trust_code=True))
        took, covered = found["step_ns"]["replayed"], found["coverage"]
        print(f"{len(kernels)} kernels of Triton, launched {launches} times in {program.about['steps']} steps; covered "
              f"by time {100 * covered['time']:.1f}%, stand-ins {covered['stand_ins'] or 'none'}, failures "
              f"{found['failures'] or 'none'}; --host {host or 'recorded'}: step {took / 1e6:.3f} ms, program "
              f"{wanted / 1e6:.3f} ms, {100 * (took / wanted - 1):+.1f}%")  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(Path(sys.argv[2]))
    else:
        play(Path(sys.argv[2]), Path(sys.argv[3]))
