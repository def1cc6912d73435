from typing import Annotated

import typer

from etude.cli.app import ANALYSE, app
from etude.cli.inputs import GroupFile, JobPath, Workers, open_job
from etude.cli.output import AsCsv, AsJson, AsMarkdown, emit, say
from etude.cli.runs import OnSystem, RanOn, TimesFile, find_run, grown, no_times, simulated


@app.command(rich_help_panel=ANALYSE)
def metrics(
    path: JobPath,
    ran_on: RanOn = "",
    system: OnSystem = "",
    traffic: Annotated[bool, typer.Option("--traffic", help="Who sends how much to whom, instead.")] = False,
    timing: TimesFile = None,
    groups: GroupFile = None,
    workers: Workers = 0,
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """What benchmarks publish of a run: step time, MFU, communication, overlap, bandwidth, balance, TTFT and TPOT

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
    from etude.report import device_of, recognised
    from etude.store import cards

    job, run = find_run(path, groups, workers, "", timing)
    if run is None and not system:
        raise no_times(path)
    if run is None:
        say(f"note: no times were recorded: they are those of a simulation on {system}")
        run = simulated(job, system, cards.find(path))
    elif system:  # what --system meant here before there was --ran-on, for the scripts that say so
        say("note: the run has times of its own, so --system is taken as --ran-on, which says so")
    card, is_device = run.card, ran_on in device_names()
    machine = (system if is_device else ran_on or system) or (card.hardware.system if card is not None else "")
    if machine:
        run = replace(run, system=grown(open_system(machine), machine, job.world_size))
    device = device_of(job, ran_on)
    device = device or (recognised(card.hardware.device) if card is not None else None)
    found = analyse.metrics(run, device=device)
    emit(found if json or csv else analyse.shown(found), json=json, csv=csv, md=md)
    if any(of_engine(trace) for trace in job.traces):
        say(
            "note: an engine's trace does not say when requests arrived, so that there is no ttft: see `etude requests`"
        )
    if card is None:
        say(f"note: no card lies with this job, so nothing is known of its model; `etude card {path} --write`")
