from pathlib import Path
from typing import Annotated, Any

import typer

from etude.cli.app import RUN, app
from etude.cli.output import AsJson, emit, say
from etude.cli.plan_flags import ModelName, model_of
from etude.errors import UsageError

EXAMPLE = """Federated rounds: clients of mixed devices and links, sampled, with deadlines and limits of the server

[bold]Example[/bold]

  etude federate resnet-50 --clients clients.csv --rounds 500 --count 50 --sample weighted
  etude federate gpt2 --clients clients.csv --rounds 100 --count 20 --steps 10 --deadline 10min --server 1Gb/s

Clients are rows of a CSV: `down` and `up` (100Mb/s), `step_s` or `system` (a step there is predicted), and where they
are not as usual `name`, `available`, `drops`, `samples`, `share`.
"""


@app.command(rich_help_panel=RUN, help=EXAMPLE)
def federate(
    model: ModelName = "",
    clients: Annotated[Path | None, typer.Option(help="CSV of clients.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 100,
    count: Annotated[int, typer.Option(min=0, help="Clients of a round; 0: all.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Local steps of a client in a round.")] = 1,
    micro_batch: Annotated[int, typer.Option(min=1, help="Samples of a local step, where it is predicted.")] = 1,
    sample: Annotated[str, typer.Option(help="How clients are drawn: uniform, weighted (by samples).")] = "uniform",
    deadline: Annotated[str, typer.Option(help="Answers after it are not taken: `10min`.")] = "",
    quorum: Annotated[int, typer.Option(min=0, help="A round ends with so many answers; 0: with the last.")] = 0,
    server: Annotated[str, typer.Option(help="Link of the server, each way: `10Gb/s`; none: no limit.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is drawn.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for `etude query` and `compare`.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a folder that exists.")] = False,
    json: AsJson = False,
) -> int:
    from etude.fleet import write_fleet
    from etude.fleet.federated import federate as run
    from etude.fleet.federated import read_clients
    from etude.generate import Plan
    from etude.generate.train import plan_memory
    from etude.units import parse_bandwidth, parse_time

    if not model or clients is None:
        raise UsageError("a model and its clients are needed", hint="etude federate gpt2 --clients clients.csv")
    network = model_of(model)
    weights = float(sum(memory.weights for memory in plan_memory(network, Plan())))

    def step_of(system: str, share: float) -> float:
        from etude.machine import open_system
        from etude.predict import predict

        plan = Plan(gpus=1, micro_batch=micro_batch, global_batch=micro_batch)
        return share * predict(network, plan, open_system(system)).step_time_ns / 1e9

    wait = parse_time(deadline) if deadline else 0
    if wait < 0:
        raise UsageError(f"--deadline: {deadline} is negative", hint="--deadline 10min")
    who = read_clients(clients, step_of)
    found = run(
        who, model_bytes=weights, rounds=rounds, count=count or len(who), steps=steps, sample=sample,
        deadline_s=wait / 1e9, quorum=quorum, server_bytes_per_s=parse_bandwidth(server) if server else 0.0, seed=seed,
    )  # fmt: skip
    record = found.summary() | {"model_bytes": weights}
    if out is not None:
        asked = {"model": model, "clients": str(clients), "rounds": rounds, "count": count, "steps": steps,
                 "sample": sample, "deadline": deadline, "quorum": quorum, "server": server, "seed": seed}  # fmt: skip
        write_fleet(found.tables(), record | {"asked": asked}, out, force=force)
        say(f"wrote {out}")
    emit(record if json else _shown(record), json=json)
    return 0


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    each = record["round_s"]
    return {
        "rounds": f"{record['rounds']:,} in {record['duration_s'] / 3600:,.2f} h",
        "a round": f"mean {each['mean']:,.2f} s, p50 {each['p50']:,.2f} s, p99 {each['p99']:,.2f} s",
        "answers": f"{record['answered']:,} of {record['asked']:,} that were asked for",
        "bytes": f"{record['down_bytes'] / 1e9:,.2f} GB down, {record['up_bytes'] / 1e9:,.2f} GB up",
        "clients": f"{record['clients']:,}, {record['never_taken']:,} of them never taken",
    }
