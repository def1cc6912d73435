"""Days of a training job, or what shares a cluster: `etude.fleet` asks for what the command asks for."""

from __future__ import annotations

from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from etude.surface.api.given import built
from etude.world.fleet.days import TrainRequest, train, train_inputs
from etude.world.fleet.shared import KINDS, kind_of

if TYPE_CHECKING:
    from etude.machine import System
    from etude.make.generate import Plan
    from etude.make.generate.model import Model


def fleet(
    model: str | PathLike[str] | Model, system: str | PathLike[str] | System = "", plan: Plan | None = None, *,
    check: bool = True, **options: Any,
) -> Any:  # fmt: skip
    """Days of a training job on a cluster with faults, checkpoints and recovery; `.record()` has its figures. Options
    are those of `etude fleet train`: axes of the plan, `days`, `faults`, `checkpoint`, `recover` and its figures. In
    the place of a model a file may say what shares a cluster (`etude.fleet("pool.yaml", policy="fair")`): options are
    then those of `etude fleet share`, or of the verb for its kind: `jobs`, `policy`, `switch`, `migrate`, `load`.

    etude.fleet("llama3-8b", "dgx-h100", gpus=64, zero=1, days=7, faults="llama3", checkpoint="remote:1h")
    """
    texts = {"spares", "exclude", "load"}
    given = {name: str(value) if name in texts else value for name, value in options.items()}
    given |= {name: value for name, value in (("system", system), ("plan", plan)) if value}
    given |= {} if check else {"memory_check": False}
    file = fspath(model) if isinstance(model, str | PathLike) else ""
    kind = "share" if file and options.get("jobs") is not None else kind_of(file)
    if not kind:
        inputs, _ = built(TrainRequest, train_inputs, {"model": model, **given}, "fleet")
        return train(inputs).fleet
    cls, build, run = KINDS[kind]
    inputs, _ = built(cls, build, {"cluster" if kind == "share" else "file": file, **given}, "fleet")
    found = run(inputs)
    return found[0] if isinstance(found, list) and len(found) == 1 else found
