"""Plans of a model on a system, one point at a time: the step and the memory that `etude predict` gives."""

from __future__ import annotations

import shlex
from typing import Any, Final

from etude.base.errors import EtudeError, UsageError

AXES: Final = ("tp", "pp", "cp", "ep", "zero")
MOST: Final = 65_536
"""Largest number of an axis."""


def models_and_systems() -> dict[str, Any]:
    """What can be chosen."""
    from etude.machine import system_names
    from etude.make.generate.model import model_names

    return {"models": list(model_names()), "systems": list(system_names()), "axes": list(AXES)}


def plan_point(given: dict[str, Any]) -> dict[str, Any]:
    """One plan: its step, its memory, whether it fits, and the command. What cannot be is said, not raised."""
    known = models_and_systems()
    model, system = given.get("model"), given.get("system")
    if model not in known["models"] or system not in known["systems"]:
        raise UsageError("there is no such model or system in the catalogues")
    gpus, batch, seq = (_number(given, name) for name in ("gpus", "global_batch", "seq"))
    axes = {name: _number(given, name) for name in AXES if given.get(name)}
    flags = {"gpus": gpus, **axes, "global_batch": batch, "seq": seq}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    told = {
        "axes": axes,
        "command": shlex.join(["etude", "predict", str(model), *words, "--system", str(system), "--no-memory-check"]),
        "python": f"etude.predict({model!r}, {system!r}, check=False, "
        + ", ".join(f"{name}={value}" for name, value in flags.items())
        + ")",
    }
    import etude

    try:
        found = etude.predict(model, system, check=False, **flags)  # type: ignore[arg-type]
    except EtudeError as problem:
        return told | {"problem": problem.problem}
    room = etude.open_system(str(system)).memory_bytes
    peak = found.generated.memory_peak_bytes
    return told | {
        "step_ns": found.step_time_ns,
        "tokens_per_s_per_gpu": found.tokens_per_s_per_gpu,
        "mfu": found.mfu,
        "memory_bytes": peak,
        "fits": not room or peak <= room,
    }


def _number(given: dict[str, Any], name: str) -> int:
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MOST * 16:
        raise UsageError(f"`{name}` is not a number from 1 on")
    return value
