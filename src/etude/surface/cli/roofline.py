from typing import Annotated

import typer

from etude.surface.cli.app import ANALYSE, app
from etude.surface.cli.inputs import GroupFile, JobPath, Workers
from etude.surface.cli.output import AsCsv, AsJson, AsMarkdown, say
from etude.surface.cli.runs import OnSystem, RanOn, TimesFile, open_run, show


@app.command(rich_help_panel=ANALYSE)
def roofline(
    path: JobPath,
    ran_on: RanOn = "",
    utilisation: Annotated[bool, typer.Option("--utilisation", help="Show MFU and HFU of each rank instead.")] = False,
    model_flops: Annotated[str, typer.Option("--model-flops", help="Model FLOPs per rank, e.g. `12T`.")] = "",
    top: Annotated[int, typer.Option("--top", min=0, help="Number of rows to show; 0: all.")] = 0,
    system: OnSystem = "",
    timing: TimesFile = None,
    groups: GroupFile = None,
    workers: Workers = 0,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """FLOP/s and bytes/s of operators, and how much of the device's roofline they reach

    etude roofline trace.json.gz --ran-on h200
    etude roofline trace.json.gz --ran-on h200 --utilisation

    at_most: whether an attention is causal was not recorded, so all pairs are counted
    """
    from etude.analyse import roofline as analyse
    from etude.base.errors import UsageError
    from etude.base.units import format_time, parse_count
    from etude.tell.report import device_of

    run = open_run(path, groups, workers, system, timing)
    on = device_of(run.job, ran_on or system)
    if utilisation:
        if on is None:
            raise UsageError("utilisation needs a device, and none was recorded", hint="--ran-on h200")
        needed = parse_count(model_flops) if model_flops else None
        found = analyse.utilisation(run, on, model_flops=needed)
    else:
        found = analyse.roofline(run, on)
    show(found.slice(0, top) if top else found, json=json, csv=csv, md=md)
    if missing := analyse.not_known(run).to_pylist():
        time = format_time(sum(row["time_ns"] for row in missing))
        names = ", ".join(row["name"] for row in missing[:3]) + (", ..." if len(missing) > 3 else "")
        say(f"note: neither FLOPs nor bytes are known for {time} of device work: {names}")
