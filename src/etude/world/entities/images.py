"""Images and videos on whole nodes of a machine, as `etude serve images` has them. Faults of its nodes are not felt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from etude.world.clock import Event
from etude.world.devices import DevicePool
from etude.world.entities.machine import PlainWorkload
from etude.world.serve.images.serving import ImageLoop
from etude.world.serve.requests import NO_DEADLINE
from etude.world.serve.results import spread


@dataclass(slots=True)
class ImagesWorkload(PlainWorkload):
    name: str
    loop: ImageLoop
    devices: DevicePool
    limit_s: float = 0.0
    """Limit of goodput where a request has no deadline; 0: none."""
    made_of: Any = None
    """What its costs were worked out from; None if they were given."""

    def advance(self, until_ns: int) -> Iterable[Event]:
        return self.loop.advance(until_ns)

    def done_ns(self) -> int:
        return int(self.loop.finish_ns.max())

    def tables(self) -> dict[str, pa.Table]:
        return {"tasks": self.loop.served().tasks} if self.loop.tasks.rows else {}

    def figures(self, horizon_ns: int) -> dict[str, Any]:
        loop = self.loop
        ended = loop.finish_ns >= 0
        took = (loop.finish_ns - loop.requests.arrival_ns)[ended] / 1e9
        due = loop.requests.deadline_ns[ended]
        kept = took <= np.where(due < NO_DEADLINE, due / 1e9, self.limit_s or np.inf)
        return {
            "requests": int((loop.requests.arrival_ns < horizon_ns).sum()),
            "finished": int(ended.sum()),
            "latency_s": spread(took),
            "within_limits": float(kept.mean()) if ended.any() else None,
        }

    def parts_ns(self, horizon_ns: int) -> dict[str, int]:
        """Groups that work, and that are set up; a task in progress counts up to the horizon."""
        rows = [(begin, end, set_up, degree) for _, _, begin, end, set_up, _, degree, _ in self.loop.tasks.rows]
        rows += [(g.begin, horizon_ns, g.set_up, len(g.devices)) for g in self._working(horizon_ns)]
        starting = sum(min(set_up, end - begin) * degree for begin, end, set_up, degree in rows)
        busy = sum((end - begin) * degree for begin, end, _, degree in rows) - starting
        held = self.devices.device_ns(self.name, horizon_ns)
        return {"busy": busy, "starting": starting, "idle": held - busy - starting}

    def _working(self, horizon_ns: int) -> list[Any]:
        """Groups whose task has not ended."""
        return [group for group in self.loop.tasks.groups if group.note and group.begin < horizon_ns]
