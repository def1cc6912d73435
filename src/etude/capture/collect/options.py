"""What to record. The same options serve the context manager, the decorator and the launcher."""

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from etude.base.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOptions:
    name: str = "trace"
    """Files are `NAME.rank3.et.json.gz` and so on."""
    steps: int | None = None
    """Steps to record after the warm-up; None: until the end."""
    warmup: int = 0
    """Steps to skip first."""
    detect_steps: bool = True
    """Count optimizer steps if `step()` is never called."""
    shapes: bool = True
    """Shapes, strides and types of the inputs of each operator."""
    stacks: bool = False
    """Python frames: much larger files, and paths of source files in them."""
    flops: bool = False
    """PyTorch's own estimate of FLOPs."""
    modules: bool = False
    """Module hierarchy (TorchScript only, says PyTorch)."""
    memory: bool = False
    """Every allocation and release."""
    sync_events: bool = True
    """CUDA synchronisation events, if there is a GPU and the installed PyTorch supports them."""
    flight_recorder: bool = True
    """Entries of the Flight Recorder: the process group of every gloo collective."""
    full_only: bool = False
    """Record no steps lightly: what is known of the program is then its time under the profiler."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """The parallel plan, for the manifest: `{"tp": 2, "dp": 4}`. Written to JSON unchanged."""
    force: bool = False
    """Replace the files of an earlier run in the folder."""

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            hint = "use steps of at least 1; leave it out to record all"
            raise UsageError(f"{self.steps} is not a valid number of steps", hint=hint)
        if self.warmup < 0:
            raise UsageError(f"{self.warmup} is not a valid number of warm-up steps")
        if not re.fullmatch(r"[\w][\w.-]*", self.name):
            raise UsageError(f"`{self.name}` is not a valid start of a file name", hint="letters, digits, _ - and .")
        try:
            json.dumps(dict(self.plan))
        except (TypeError, ValueError) as problem:
            raise UsageError(f"the plan cannot be written as JSON: {problem}") from None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "CollectOptions":
        known = [f.name for f in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                raise UsageError(f"unknown option `{key}`", where="collect", hint=f"known: {', '.join(known)}")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)} | {"plan": dict(self.plan)}
