"""The light window: the last steps of the warm-up, recorded with next to nothing, so that they take as long as without.

On a device: its activities and the driver's calls alone, without operators. On a CPU: operators alone, without observer
and shapes; an event then costs about 1 us, not 40, and what it costs is measured between the steps. `link` takes the
times of the program from here, and its structure from the full window.
"""

import contextlib
import json
import shutil
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from etude.base.quiet import quiet
from etude.base.rounds import KERNELS, LAYERS, NODES, SmallNetwork
from etude.capture.collect import features
from etude.capture.collect.capture import on_device, settle
from etude.capture.collect.turns import ours

DEVICE_PASSES: Final = 30
"""Passes of each kind on a device, by which the cost of the profiler is measured, after a first one."""
STEPS: Final = 12
"""Light steps of a program on a device, if it has as many: how fast its host is changes from one step to the next."""
LONG_NS: Final = 10_000_000_000
"""Time after which no more are recorded."""
PASSES = 8
"""Passes after each step, through the network of `etude.base.rounds`."""
OPERATOR, CALL, ACTIVITY = 0, 1, 2
KINDS: Final = {
    "cpu_op": OPERATOR, "user_annotation": OPERATOR, "cuda_runtime": CALL, "cuda_driver": CALL, "hip_runtime": CALL,
    "hip_driver": CALL, "kernel": ACTIVITY, "gpu_memcpy": ACTIVITY, "gpu_memset": ACTIVITY,
}  # fmt: skip
"""What an event of the profiler is, by its category."""
COLUMNS: Final = ("name", "kind", "thread", "correlation", "start_ns", "end_ns")


def light_steps(warmup: int, steps: int | None) -> int:
    """How many of the last steps of a warm-up are recorded this way: as many as in full, and one in which the profiler
    starts; half of a short warm-up."""
    return 0 if warmup < 3 or steps is None else min(steps + 1, warmup // 2)


def passes_ns(torch: Any) -> tuple[int, ...]:
    """Least host time of a pass through a small network on an idle device, forward, and forward and back; none on a
    CPU. A profiler adds to a launch there what it adds in a program, on average; in a loop of launches, where its code
    stays in the caches, a third of that."""
    if not on_device(torch):
        return ()
    found = []
    network = SmallNetwork(torch, device="cuda")
    for number in range(2 * (DEVICE_PASSES + 1)):
        settle(torch)
        with torch.set_grad_enabled(number % 2 == 1):
            since = time.perf_counter_ns()
            network.run()
            found.append(time.perf_counter_ns() - since)
    settle(torch)
    return min(found[2::2]), min(found[3::2])


class LightCapture:
    """Recording from `LightCapture(...)` to `stop()`."""

    def __init__(self, torch: Any, folder: Path, plain_ns: tuple[int, ...] = ()) -> None:
        """`plain_ns`: times of passes before any profiler ran, if the program had used its device by then."""
        self._torch = torch
        self.folder = folder
        self._file = folder / "light.json"
        self.running = True
        self.on_device = on_device(torch)
        self._among_others = features.distributed(torch) is not None
        """Others wait for this rank: its costs are measured after the last step, not between steps."""
        self._more_ns: list[list[int]] = []
        self._graph_ns: list[int] = []
        """What the profiler added to each pass, and what autograd added to its forward half."""
        self._pass_ns: list[float] = []
        self._cpu_ns: list[int] = []
        """For each step the time of a pass without the profiler, and the CPU time of this thread."""
        self._marks_ns: list[list[int]] = []
        """Begin and end of each step, as the time of day."""
        self._since_ns = 0
        self._took_ns: list[int] = []
        self.plain_ns = plain_ns or passes_ns(torch)
        self._light_ns: tuple[int, ...] = ()
        """Host times of passes on a device, without the profiler and with it."""
        self._marker: Any = None
        self._thread = threading.get_ident()
        self._any_thread = features.any_thread_may_stop(torch, memory=False)
        config = features.experimental(torch, sync_events=False, stacks=False, memory=False)
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CUDA if self.on_device else kinds.CPU]
        self._profiler = torch.profiler.profile(activities=activities, experimental_config=config)
        settle(torch)
        with ours(), quiet():
            self._profiler.start()

    @property
    def can_stop(self) -> bool:
        return self._any_thread or threading.get_ident() == self._thread

    @property
    def steps(self) -> int:
        return len(self._took_ns)

    @property
    def took_ns(self) -> list[int]:
        """Times of the steps."""
        return self._took_ns

    def mark(self, step: int) -> None:
        self.unmark()
        self._marker = self._torch.profiler.record_function(f"ProfilerStep#{step}")
        self._marker.__enter__()
        self._marks_ns.append([time.time_ns()])
        self._since_ns = time.thread_time_ns()

    def unmark(self) -> None:
        """Ends the step: what follows belongs to the recorder."""
        marker, self._marker = self._marker, None
        if marker is None:
            return
        self._cpu_ns.append(time.thread_time_ns() - self._since_ns)
        self._marks_ns[-1].append(time.time_ns())
        self._took_ns.append(self._marks_ns[-1][1] - self._marks_ns[-1][0])
        marker.__exit__(None, None, None)
        if not self.on_device and not self._among_others:
            self._measure_cost()

    def _measure_cost(self) -> None:
        plain_ns, more_ns, graph_ns = _added_ns(self._torch)
        self._pass_ns.append(statistics.median(plain_ns))
        self._more_ns.append(more_ns)
        self._graph_ns += graph_ns

    def stop(self, *, within_step: bool = False) -> None:
        """`within_step`: the program ends before its step does, which does not count then."""
        if not self.running:
            return
        self.running = False
        self.unmark()
        if within_step and self._took_ns:
            for column in (self._took_ns, self._marks_ns, self._cpu_ns):
                column.pop()
        elif self.on_device and self._took_ns:
            settle(self._torch)
            self._took_ns[-1] = time.time_ns() - self._marks_ns[-1][0]
        self._light_ns = () if within_step else passes_ns(self._torch)
        if not self.on_device and self._among_others and not within_step:
            self._measure_cost()
            self._pass_ns, self._more_ns = self._pass_ns * len(self._took_ns), self._more_ns * len(self._took_ns)
        with ours():
            with quiet():
                self._profiler.stop()
            self._profiler.export_chrome_trace(str(self._file))

    def events(self) -> dict[str, Any]:
        """Columns: the `names`, and of each event its `name` as a number, what it is (`kind`), its `thread`, or of an
        activity its stream, its `correlation`, `start_ns` and `end_ns` since `base_ns`, in order of time, outer before
        inner; `marks_ns`: begin and end of each step. Of a device `launch_ns`: what the profiler added to a launch,
        `starts`: steps in which it started. Of a CPU `node_ns`: what a node of autograd takes to be made, and of each
        step `event_ns`: what the profiler added to an event, `pass_ns`: the time of a pass through a small network,
        `cpu_ns`: what the thread worked. Empty where nothing can be read."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, ArithmeticError):
            written = json.loads(self._file.read_bytes())
            base_ns = int(written.get("baseTimeNanoseconds", 0))
            rows = [one for one in written["traceEvents"] if one.get("ph") == "X" and one.get("cat") in KINDS]
            rows.sort(key=lambda one: (one["ts"], -one["dur"]))
            costs: dict[str, Any] = {}
            if self.on_device:
                costs = {"starts": [0]}
                if self._light_ns and self.plain_ns:
                    costs["launch_ns"] = self._added_to_launch(rows, base_ns)
            else:
                rows, passed = _without_passes(rows, 1 if self._among_others else len(self._more_ns))
                costs = {
                    "event_ns": [max(statistics.median(each), 0.0) / passed for each in self._more_ns],
                    "pass_ns": self._pass_ns,
                    "cpu_ns": self._cpu_ns,
                    "node_ns": max(statistics.median(self._graph_ns), 0.0) / (NODES * LAYERS),
                }
            first = rows[0]["ts"]
            names: dict[str, int] = {}
            kinds = [KINDS[one["cat"]] for one in rows]
            return {
                "name": [names.setdefault(one["name"], len(names)) for one in rows],
                "kind": kinds,
                "thread": [int(one["tid"]) for one in rows],
                "correlation": [int(one.get("args", {}).get("correlation", 0)) for one in rows],
                "start_ns": [round(1000 * (one["ts"] - first)) for one in rows],
                "end_ns": [round(1000 * (one["ts"] + one["dur"] - first)) for one in rows],
                "names": list(names),
                "base_ns": base_ns + round(1000 * first),
                "marks_ns": self._marks_ns,
                "device": self.on_device,
                **costs,
            }
        return {}

    def _added_to_launch(self, rows: Sequence[dict[str, Any]], base_ns: int) -> float:
        """By both kinds of pass, on average. Activities after the last step are those of passes."""
        after_us = (self._marks_ns[-1][1] - base_ns) / 1000
        mine = sum(KINDS[one["cat"]] == ACTIVITY and one["ts"] > after_us for one in rows)
        launches = (KERNELS, max(mine / (DEVICE_PASSES + 1) - KERNELS, KERNELS))
        pairs = zip(self._light_ns, self.plain_ns, launches, strict=True)
        return statistics.mean(max(light_ns - plain_ns, 0) / count for light_ns, plain_ns, count in pairs)

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def in_one(windows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Windows of one process on a device, in order of time, as one."""
    first, *others = windows
    found = first | {key: list(first[key]) for key in (*COLUMNS, "names", "marks_ns", "starts")}
    number = {name: k for k, name in enumerate(first["names"])}
    for other in others:
        later_ns = other["base_ns"] - first["base_ns"]
        own = [number.setdefault(name, len(number)) for name in other["names"]]
        found["name"] += [own[name] for name in other["name"]]
        more = max(found["correlation"])  # a profiler that was taken out counts anew
        found["correlation"] += [one + more if one else 0 for one in other["correlation"]]
        for key in ("kind", "thread"):
            found[key] += other[key]
        for key in ("start_ns", "end_ns"):
            found[key] += [moment + later_ns for moment in other[key]]
        found["starts"] += [len(found["marks_ns"]) + which for which in other["starts"]]
        found["marks_ns"] += other["marks_ns"]
    costs = [one["launch_ns"] for one in windows if "launch_ns" in one]
    return found | {"names": list(number)} | ({"launch_ns": statistics.mean(costs)} if costs else {})


def _without_passes(rows: list[dict[str, Any]], steps: int) -> tuple[list[dict[str, Any]], float]:
    """Events without those of the passes between steps, and how many a pass has."""
    marks = [one for one in rows if one["name"].startswith("ProfilerStep#")]
    spans = [(one["ts"], one["ts"] + one["dur"]) for one in marks]
    mine = marks[0]["tid"]
    between = [one["tid"] == mine and not any(a <= one["ts"] < b for a, b in spans) for one in rows]
    return [one for one, ours in zip(rows, between, strict=True) if not ours], sum(between) / (PASSES * steps)


def _added_ns(torch: Any) -> tuple[list[int], list[int], list[int]]:
    """CPU time of passes through a network, what the profiler, which is on, adds to them, and what autograd adds to
    their forward half. Passes with and without take turns: how fast a core is changes from one moment to the next."""
    plain, more, graph = [], [], []
    network = SmallNetwork(torch)
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
