"""Steps of the warm-up under the profiler alone, without observer and shapes: an event then costs 1 us or so, not 40.
From these, not from the window, a replay learns how long Python is between two operators of a CPU."""

import contextlib
import json
import shutil
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from etude.collect import features
from etude.collect.turns import ours
from etude.quiet import quiet

MOST, LEAST_NS = 3, 300


def light_steps(torch: Any, warmup: int) -> int:
    """How many of the last steps of a warm-up are recorded so: none of the first two, and no more than half of the
    others. None where a device works behind the host: then gaps of the host tell nothing."""
    on_device = torch.cuda.is_available() and torch.cuda.is_initialized()
    return 0 if on_device or warmup < 3 else max((warmup - 1) // 2, 1)


class LightCapture:
    """Recording from `LightCapture(...)` to `stop()`."""

    def __init__(self, torch: Any, folder: Path) -> None:
        self._torch = torch
        self.folder = folder
        self._file = folder / "light.json"
        self.running = True
        self._least_ns = 0
        self._cpu_ns: list[int] = []
        """Of each step what this thread worked."""
        self._since_ns = 0
        self._marker: Any = None
        self._thread = threading.get_ident()
        self._any_thread = features.any_thread_may_stop(torch, memory=False)
        config = features.experimental(torch, sync_events=False, stacks=False, memory=False)
        cpu = [torch.profiler.ProfilerActivity.CPU]
        self._profiler = torch.profiler.profile(activities=cpu, experimental_config=config)
        self._off_ns = _operator_ns(torch)
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
        """The step is over: what follows is the recorder's own."""
        marker, self._marker = self._marker, None
        if marker is not None:
            self._cpu_ns.append(time.thread_time_ns() - self._since_ns)
            marker.__exit__(None, None, None)

    def stop(self) -> None:
        if not self.running:
            return
        self.running = False
        self.unmark()
        with ours():
            on_ns = _operator_ns(self._torch)
            with quiet():
                self._profiler.stop()
            self._least_ns = max(on_ns - min(self._off_ns, _operator_ns(self._torch)), LEAST_NS)
            self._profiler.export_chrome_trace(str(self._file))

    def events(self, unprofiled_cpu_ns: list[int]) -> dict[str, Any]:
        """Columns: the `names`, and of each event its `name` as a number, its `thread`, `start_ns` and `end_ns`, in
        order of time, outer before inner; `event_ns`: what the profiler added to an event. Empty where nothing can be
        read."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            rows = [one for one in json.loads(self._file.read_bytes())["traceEvents"]
                    if one.get("cat") in ("cpu_op", "user_annotation")]  # fmt: skip
            rows.sort(key=lambda one: (one["ts"], -one["dur"]))
            steps = [one for one in rows if one["name"].startswith("ProfilerStep#")]
            ends = {one["tid"]: one["ts"] + one["dur"] for one in steps}
            rows = [one for one in rows if one["ts"] < max(ends.values())]
            mine = sum(one["tid"] in ends for one in rows) / max(len(steps), 1)
            first = rows[0]["ts"]
            names: dict[str, int] = {}
            return {
                "name": [names.setdefault(one["name"], len(names)) for one in rows],
                "thread": [int(one["tid"]) for one in rows],
                "start_ns": [round(1000 * (one["ts"] - first)) for one in rows],
                "end_ns": [round(1000 * (one["ts"] + one["dur"] - first)) for one in rows],
                "names": list(names),
                "event_ns": self._event_ns(unprofiled_cpu_ns, mine),
            }
        return {}

    def _event_ns(self, unprofiled_cpu_ns: list[int], events: float) -> float:
        """What steps with the profiler worked more than those without, for each event; between the least that an event
        costs and MOST times that, since steps differ by themselves too."""
        least = float(self._least_ns)
        if not unprofiled_cpu_ns or not self._cpu_ns or not events:
            return least
        more = statistics.median(self._cpu_ns) - statistics.median(unprofiled_cpu_ns)
        return min(max(more / events, least), MOST * least)

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _operator_ns(torch: Any) -> int:
    """The smallest operator between others: what it needs is in no near cache, as in a program."""
    other, took = torch.empty(30_000), []
    for _ in range(160):
        other.zero_()
        begin = time.perf_counter_ns()
        torch.empty(0)
        took.append(time.perf_counter_ns() - begin)
    return int(statistics.quantiles(took, n=4)[0])  # others on the machine only add
