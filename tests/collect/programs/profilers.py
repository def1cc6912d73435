"""A script with profilers of its own, in every way that PyTorch allows, and then some steps without."""

import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ExecutionTraceObserver, profile, schedule

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(times: int = 1) -> None:
    for _ in range(times):
        optimizer.zero_grad()
        model(torch.ones(8, 16)).sum().backward()
        optimizer.step()


def linears(profiler: profile) -> int:
    return sum(event.name == "aten::linear" for event in profiler.events())


def scheduled(wait: int, warmup: int, active: int, repeat: int) -> list[int]:
    """Calls of a linear layer in each trace that its handler gets."""
    found: list[int] = []
    plan = schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
    with profile(schedule=plan, on_trace_ready=lambda p: found.append(linears(p)), record_shapes=True) as profiler:
        for _ in range((wait + warmup + active) * max(repeat, 1)):
            step()
            profiler.step()
    return found


def by_hand() -> list[int]:
    profiler, found = profile(), []
    for _ in range(3):
        profiler.start()
        step(2)
        profiler.stop()
        found.append(linears(profiler))
        step()
    return found


def in_a_thread() -> list[int]:
    found: list[int] = []

    def run() -> None:
        with profile() as profiler:
            step()
        found.append(linears(profiler))

    for _ in range(2):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        step()
    return found


def nested() -> list[int]:
    with profile(), profile():
        step()
    with torch.autograd.profiler.profile() as plain:
        step()
    return [sum(event.name == "aten::linear" for event in plain.function_events)]


def observed(folder: Path) -> list[bool]:
    """Whether its own observer wrote the operators of what ran between start and stop."""
    path = folder / "own.json"
    observer = ExecutionTraceObserver().register_callback(str(path))
    step()
    observer.start()
    step()
    observer.stop()
    step()
    observer.unregister_callback()
    text = path.read_text()
    return [text.count('"aten::linear"') == 2, text.rstrip().endswith("}")]


def main() -> None:
    ways: dict[str, Callable[[], object]] = {
        "waits first": lambda: scheduled(1, 1, 2, 2),
        "warms up first": lambda: scheduled(0, 2, 1, 1),
        "after a step": lambda: (step(), scheduled(0, 1, 2, 2))[1],
        "by hand": by_hand,
        "thread": in_a_thread,
        "nested": nested,
    }
    for name, way in ways.items():
        print(name, way())
    with tempfile.TemporaryDirectory() as folder:
        print("observer", observed(Path(folder)))
    step(int(sys.argv[1]))
    print("done", flush=True)


if __name__ == "__main__":
    main()
    sys.exit(5)
