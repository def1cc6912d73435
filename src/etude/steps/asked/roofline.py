"""What is asked of the FLOP/s and bytes/s that a run reaches."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from etude.base.errors import UsageError
from etude.base.figures import figure, switch
from etude.base.talk import say
from etude.steps.asked.runs import Analysed, Analysis, RanOnInput, RunSource, Topped

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.model.run import Run


@dataclass(frozen=True, kw_only=True)
class Roofline(Analysis, RanOnInput, Topped):
    """FLOP/s and bytes/s of operators, and how much of the device's roofline they reach

    etude roofline trace.json.gz --ran-on h200
    etude roofline trace.json.gz --ran-on h200 --utilisation

    at_most: whether an attention is causal was not recorded, so all pairs are counted
    """

    utilisation: bool = switch("show MFU and HFU of each rank instead")
    model_flops: int | None = figure("count", "model FLOPs per rank, e.g. `12T`", None, needs="utilisation")


def inputs(asked: Roofline) -> Analysed:
    source = RunSource.of(asked)
    if asked.utilisation:
        compute = partial(_roofline, on=asked.ran_on or source.system, utilised=True, model_flops=asked.model_flops)
    else:
        compute = partial(_roofline, on=asked.ran_on or source.system)
    return Analysed(source, compute, asked.top or 0)


def _roofline(run: "Run", on: str, utilised: bool = False, model_flops: int | None = None) -> "pa.Table":
    from etude.analyse import roofline as analyse
    from etude.analyse.devices import device_of
    from etude.base.units import format_time

    device = device_of(run.job, on)
    if utilised and device is None:
        raise UsageError("utilisation needs a device, and none was recorded", hint="--ran-on h200")
    if missing := analyse.not_known(run).to_pylist():
        time = format_time(sum(row["time_ns"] for row in missing))
        names = ", ".join(row["name"] for row in missing[:3]) + (", ..." if len(missing) > 3 else "")
        say(f"note: neither FLOPs nor bytes are known for {time} of device work: {names}")
    if utilised and device is not None:
        return analyse.utilisation(run, device, model_flops=model_flops)
    return analyse.roofline(run, device)
