from typing import Annotated

import typer

from etude.surface.cli.app import ANALYSE, app
from etude.surface.cli.inputs import GroupFile, JobPath, Workers, open_job
from etude.surface.cli.output import AsCsv, AsJson, AsMarkdown, emit, say
from etude.surface.cli.runs import OnSystem, RanOn, TimesFile, grown, open_run


@app.command(rich_help_panel=ANALYSE)
def metrics(
    path: JobPath,
    ran_on: RanOn = "",
    system: OnSystem = "",
    traffic: Annotated[
        bool, typer.Option("--traffic", help="Show the bytes sent between each pair of ranks instead.")
    ] = False,
    timing: TimesFile = None,
    groups: GroupFile = None,
    workers: Workers = 0,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """Metrics that benchmarks publish: step time, MFU, communication, overlap, bandwidth, balance, TTFT and TPOT

    etude metrics run/
    etude metrics run/ --ran-on dgx-h100 --json
    etude metrics job/ --system dgx-h100
    etude metrics run/ --traffic --csv
    """
    if traffic:
        from etude.analyse.traffic import traffic as sent

        emit(sent(open_job(path, groups, workers)), json=json, csv=csv, md=md)
        return
    from dataclasses import replace

    from etude.analyse import metrics as analyse
    from etude.analyse.engine import of_engine
    from etude.machine import device_names, open_system
    from etude.tell.report import device_of, recognised

    run = open_run(path, groups, workers, system, timing)
    job, card = run.job, run.card
    if system and job.timing is not None:  # before there was --ran-on, --system meant that here
        say(f"note: recorded times are replaced by a simulation on {system}; what the run ran on is --ran-on")
    machine = "" if ran_on in device_names() else ran_on
    machine = machine or (card.hardware.system if card is not None else "")
    if machine and not system:
        run = replace(run, system=grown(open_system(machine), machine, job.world_size))
    device = device_of(job, ran_on, system) or (recognised(card.hardware.device) if card is not None else None)
    found = analyse.metrics(run, device=device)
    emit(found if json or csv else analyse.shown(found), json=json, csv=csv, md=md)
    if any(of_engine(trace) for trace in job.traces):
        say("note: an engine's trace does not say when requests arrived, so TTFT is not shown: see `etude requests`")
    if card is None:
        say(f"note: this job has no card, so its model is not known; `etude card {path} --write`")
