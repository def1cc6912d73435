"""Steps of the warm-up under the profiler alone, without observer and shapes: an event then costs about 1 us, not 40.
From these, not from the window, a replay learns how much time Python takes between two operators of a CPU."""

import contextlib
import json
import shutil
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from etude.base.quiet import quiet
from etude.base.rounds import LAYERS, NODES, Network
from etude.capture.collect import features
from etude.capture.collect.turns import ours

PASSES = 8
"""Passes after each step, through the network of `etude.base.rounds`."""


def light_steps(torch: Any, warmup: int) -> int:
    """How many of the last steps of a warm-up are recorded this way: half of them. None if a device works
    asynchronously: then gaps of the host mean nothing."""
    on_device = torch.cuda.is_available() and torch.cuda.is_initialized()
    return 0 if on_device or warmup < 3 else warmup // 2


class LightCapture:
    """Recording from `LightCapture(...)` to `stop()`."""

    def __init__(self, torch: Any, folder: Path) -> None:
        self._torch = torch
        self.folder = folder
        self._file = folder / "light.json"
        self.running = True
        self._more_ns: list[list[int]] = []
        self._graph_ns: list[int] = []
        """What the profiler added to each pass, and what autograd added to its forward half."""
        self._pass_ns: list[float] = []
        self._cpu_ns: list[int] = []
        """For each step the time of a pass without the profiler, and the CPU time of this thread."""
        self._since_ns = 0
        self._marker: Any = None
        self._thread = threading.get_ident()
        self._any_thread = features.any_thread_may_stop(torch, memory=False)
        config = features.experimental(torch, sync_events=False, stacks=False, memory=False)
        cpu = [torch.profiler.ProfilerActivity.CPU]
        self._profiler = torch.profiler.profile(activities=cpu, experimental_config=config)
        with ours(), quiet():
            self._profiler.start()

    @property
    def can_stop(self) -> bool:
        return self._any_thread or threading.get_ident() == self._thread

    def mark(self, step: int) -> None:
        self.unmark()
        self._marker = self._torch.profiler.record_function(f"ProfilerStep#{step}")
        self._marker.__enter__()
        self._since_ns = time.thread_time_ns()

    def unmark(self) -> None:
        """Ends the step: what follows belongs to the recorder."""
        marker, self._marker = self._marker, None
        if marker is not None:
            self._cpu_ns.append(time.thread_time_ns() - self._since_ns)
            marker.__exit__(None, None, None)
            plain_ns, more_ns, graph_ns = _added_ns(self._torch)
            self._pass_ns.append(statistics.median(plain_ns))
            self._more_ns.append(more_ns)
            self._graph_ns += graph_ns

    def stop(self) -> None:
        if not self.running:
            return
        self.running = False
        self.unmark()
        with ours():
            with quiet():
                self._profiler.stop()
            self._profiler.export_chrome_trace(str(self._file))

    def events(self) -> dict[str, Any]:
        """Columns: the `names`, and of each event its `name` as a number, its `thread`, `start_ns` and `end_ns`, in
        order of time, outer before inner; `node_ns`: what a node of autograd takes to be made; of each step `event_ns`:
        what the profiler added to an event, `pass_ns`: the time of a pass through a small network, `cpu_ns`: what the
        thread worked. Empty where nothing can be read."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, ArithmeticError):
            rows = [one for one in json.loads(self._file.read_bytes())["traceEvents"]
                    if one.get("cat") in ("cpu_op", "user_annotation")]  # fmt: skip
            rows.sort(key=lambda one: (one["ts"], -one["dur"]))
            steps = [one for one in rows if one["name"].startswith("ProfilerStep#")]
            spans = [(one["ts"], one["ts"] + one["dur"]) for one in steps]
            mine = steps[0]["tid"]
            between = [one["tid"] == mine and not any(a <= one["ts"] < b for a, b in spans) for one in rows]
            passed = sum(between) / (PASSES * len(self._more_ns))
            rows = [one for one, ours in zip(rows, between, strict=True) if not ours]
            first = steps[0]["ts"]
            names: dict[str, int] = {}
            return {
                "name": [names.setdefault(one["name"], len(names)) for one in rows],
                "thread": [int(one["tid"]) for one in rows],
                "start_ns": [round(1000 * (one["ts"] - first)) for one in rows],
                "end_ns": [round(1000 * (one["ts"] + one["dur"] - first)) for one in rows],
                "names": list(names),
                "event_ns": [max(statistics.median(each), 0.0) / passed for each in self._more_ns],
                "pass_ns": self._pass_ns,
                "cpu_ns": self._cpu_ns,
                "node_ns": max(statistics.median(self._graph_ns), 0.0) / (NODES * LAYERS),
            }
        return {}

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _added_ns(torch: Any) -> tuple[list[int], list[int], list[int]]:
    """CPU time of passes through a network, what the profiler, which is on, adds to them, and what autograd adds to
    their forward half. Passes with and without take turns: how fast a core is changes from one moment to the next."""
    plain, more, graph = [], [], []
    network = Network(torch)
    with torch.enable_grad():
        for _ in range(PASSES):
            seen_ns = sum(network.pass_ns())
            torch.autograd._enable_record_function(False)
            try:
                forward_ns, backward_ns = network.pass_ns()
                with torch.no_grad():
                    graph.append(forward_ns - network.pass_ns()[0])
            finally:
                torch.autograd._enable_record_function(True)
            plain.append(forward_ns + backward_ns)
            more.append(seen_ns - forward_ns - backward_ns)
    return plain, more, graph
