from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import ClusterError, UsageError
from etude.surface.cli.app import RUN, app
from etude.surface.cli.output import AsJson, emit, say
from etude.surface.cli.plan_flags import ModelName, model_of

if TYPE_CHECKING:
    from etude.make.generate.model import Model
    from etude.world.fleet.federated import Clients, Swarm, Together

EXAMPLE = """Federated rounds: clients of mixed devices and links, sampled, with a server or as a swarm

[bold]Example[/bold]

  etude federate resnet-50 --clients clients.csv --rounds 500 --count 50 --sample weighted
  etude federate gpt2 --clients clients.csv --rounds 100 --count 20 --steps 10 --deadline 10min --server 1Gb/s
  etude federate resnet-50 --clients clients.csv --train share:auto --deadline 60s
  etude federate llama3-70b --clients 100 --link 7..10Gb/s --share swarm+warmup --lag 10min --chunk 1GB --rounds 1
  etude federate resnet-50 --clients 1000 --count 50 --available 0.3..0.9 --away 4 --sample awpsp \\
      --correlated 20x50:available=0.8,away=10
  etude federate llama3.2-1b --clients clients.csv --split auto --lora 16 --lora-cut 4 --steps 10 --lengths dirichlet
  etude federate ... -o rounds/; etude report rounds/ -o rounds.html

Clients are rows of a CSV: `down` and `up` (100Mb/s), `step_s` or `system` (a step there is predicted), and where they
are not as usual `name`, `available`, `away`, `drops`, `samples`, `share`, `group`, `label`, `memory`. Or they are a
number, and figures are drawn between bounds. The same seed gives the same clients and absences to every way to sample.
"""
DRAWN = "Clients"
SWARM = "Swarm"
SPLIT = "Split training"


@app.command(rich_help_panel=RUN, help=EXAMPLE)
def federate(
    model: ModelName = "",
    clients: Annotated[str, typer.Option(help="CSV file of clients, or their number.", rich_help_panel=DRAWN)] = "",
    link: Annotated[
        str, typer.Option(help="With a number: downlink and uplink of each: `7..10Gb/s`.", rich_help_panel=DRAWN)
    ] = "",
    up: Annotated[
        str, typer.Option(help="With a number: uplink of each, if different from the downlink.", rich_help_panel=DRAWN)
    ] = "",
    step: Annotated[
        str,
        typer.Option(
            help="With a number: time of a local step that trains the whole model: `1..4s`.", rich_help_panel=DRAWN
        ),
    ] = "",
    available: Annotated[
        str,
        typer.Option(
            help="With a number: fraction of the rounds in which a client is available: `0.5..0.9`.",
            rich_help_panel=DRAWN,
        ),
    ] = "",
    away: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="With a number: rounds that an absence lasts; 0: drawn anew each round.",
            rich_help_panel=DRAWN,
        ),
    ] = 0.0,
    correlated: Annotated[
        str,
        typer.Option(
            help="Groups of clients that are absent together: `20x50:available=0.9,away=5`; `groups:available=0.9` "
            "uses the groups of a CSV file.",
            rich_help_panel=DRAWN,
        ),
    ] = "",
    labels: Annotated[
        int,
        typer.Option(
            min=0, help="Number of labels, dealt to groups or clients; 0: as the CSV file says.", rich_help_panel=DRAWN
        ),
    ] = 0,
    leave: Annotated[
        bool,
        typer.Option(
            "--leave",
            help="A client that is absent in the next round has not answered in this one.",
            rich_help_panel=DRAWN,
        ),
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 100,
    count: Annotated[int, typer.Option(min=0, help="Clients per round; 0: all.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Local steps of a client per round.")] = 1,
    micro_batch: Annotated[int, typer.Option(min=1, help="Samples per local step, where its time is predicted.")] = 1,
    precision: Annotated[str, typer.Option(help="Data type of the weights that are sent: bf16, fp32.")] = "bf16",
    sample: Annotated[
        str, typer.Option(help="How clients are drawn: uniform (psp), weighted (by samples), awpsp (by availability).")
    ] = "uniform",
    train: Annotated[
        str, typer.Option(help="full; share:0.3; share:auto, as much as can be done by the deadline.")
    ] = "",
    parts: Annotated[int, typer.Option(min=1, max=10_000, help="Number of equal parts that shares consist of.")] = 20,
    deadline: Annotated[str, typer.Option(help="Answers after this time are discarded: `10min`.")] = "",
    quorum: Annotated[int, typer.Option(min=0, help="A round ends after this many answers; 0: after the last.")] = 0,
    server: Annotated[
        str, typer.Option(help="Link of the server, in each direction: `10Gb/s`; default: no limit.")
    ] = "",
    share: Annotated[
        str, typer.Option(help="How updates are distributed: server, swarm, swarm+warmup.", rich_help_panel=SWARM)
    ] = "server",
    chunk: Annotated[str, typer.Option(help="Size of a chunk of a swarm.", rich_help_panel=SWARM)] = "16MB",
    peers: Annotated[
        int, typer.Option(min=0, help="Number of other clients that a client knows; 0: all.", rich_help_panel=SWARM)
    ] = 0,
    warmup: Annotated[
        float,
        typer.Option(
            min=0.0, help="Fraction of the chunks that every client holds after the warm-up.", rich_help_panel=SWARM
        ),
    ] = 0.1,
    lag: Annotated[str, typer.Option(help="Longest lag of a client in the warm-up.", rich_help_panel=SWARM)] = "0s",
    split: Annotated[
        str,
        typer.Option(
            help="Number of layers that a client holds; the server has the rest: `8`; `auto`: each client has its "
            "own cut, with "
            "one layer at least (`auto:0`: or none).",
            rich_help_panel=SPLIT,
        ),
    ] = "",
    lora: Annotated[int, typer.Option(min=0, help="Rank of the adapters that are trained.", rich_help_panel=SPLIT)] = 0,
    lora_cut: Annotated[
        int,
        typer.Option(
            min=0,
            help="Rank of the adapter in the last layer of a client; 0: the same as --lora.",
            rich_help_panel=SPLIT,
        ),
    ] = 0,
    server_system: Annotated[
        str, typer.Option(help="System whose devices compute for the server; default: dgx-h100.", rich_help_panel=SPLIT)
    ] = "",
    server_devices: Annotated[
        int,
        typer.Option(
            min=0, help="Devices of the server, each for one client at a time; default: 1.", rich_help_panel=SPLIT
        ),
    ] = 0,
    seq: Annotated[int, typer.Option(min=0, help="Tokens of the longest sample; 0: 1,024.", rich_help_panel=SPLIT)] = 0,
    lengths: Annotated[
        str,
        typer.Option(
            help="`dirichlet:0.5`: samples of 1/8, 1/4, 1/2 and all of --seq, each client with its own mix; "
            "default: all are of length --seq.",
            rich_help_panel=SPLIT,
        ),
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for `etude query`, `compare` and `report`.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing folder.")] = False,
    json: AsJson = False,
) -> int:
    from etude.base.units import parse_bandwidth
    from etude.surface.cli.federate_split import Cut
    from etude.world.fleet import write_fleet
    from etude.world.fleet.federated import federate as run
    from etude.world.fleet.federated import trained

    if not model or not clients:
        raise UsageError("a model and clients are needed", hint="etude federate gpt2 --clients clients.csv")
    network = model_of(model)
    weights = weight_bytes(network, precision)
    drawn = {"link": link, "up": up, "step": step, "available": available, "away": away}
    cut = Cut.read(split, lora, lora_cut, server_system, server_devices, seq, lengths)
    who = clients_of(clients, network, micro_batch, seed, drawn, predicted=cut is None)
    who, together = grouped(who, correlated)
    if labels:
        who = who.with_labels(labels)
    wait = seconds(deadline, "--deadline") if deadline else 0.0
    who = trained(who, train, model_bytes=weights, steps=steps, deadline_s=wait, parts=parts)
    limit = parse_bandwidth(server) if server else 0.0
    parted = None if cut is None else cut.planned(
        who, network, micro_batch=micro_batch, precision=precision, steps=steps, count=min(count or len(who), len(who)),
        limit=limit, seed=seed,
    )  # fmt: skip
    found = run(
        who, model_bytes=weights, rounds=rounds, count=count or len(who), steps=steps, sample=sample, deadline_s=wait,
        quorum=quorum, server_bytes_per_s=limit, together=together, leave=leave,
        swarm=swarm_of(share, chunk, warmup, lag, peers), split=parted, parts=parts, seed=seed,
    )  # fmt: skip
    record = found.summary() | {"model_bytes": weights}
    if out is not None:
        asked = {
            "model": model, "clients": clients, **drawn, "correlated": correlated, "labels": labels, "leave": leave,
            "rounds": rounds, "count": count, "steps": steps, "sample": sample, "train": train, "deadline": deadline,
            "quorum": quorum, "server": server, "share": share, "chunk": chunk, "peers": peers, "warmup": warmup,
            "lag": lag, "seed": seed, **({} if cut is None else cut.asked()),
        }  # fmt: skip
        write_fleet(found.tables(), record | {"asked": asked}, out, force=force)
        say(f"wrote {out}")
    emit(record if json else _shown(record), json=json)
    return 0


def weight_bytes(model: "Model", precision: str) -> float:
    from etude.make.generate import Plan
    from etude.make.generate.train import plan_memory

    if precision not in ("bf16", "fp32"):
        raise UsageError(f"--precision: unknown `{precision}`", hint="bf16, fp32")
    plan = Plan.from_dict({"precision": precision}, "plan")
    return float(sum(memory.weights for memory in plan_memory(model, plan)))


def seconds(text: str, what: str) -> float:
    from etude.base.units import parse_time

    found = parse_time(text) / 1e9
    if found < 0:
        raise UsageError(f"{what}: {text} is negative", hint=f"{what} 10min")
    return found


def clients_of(
    text: str, model: "Model", micro_batch: int, seed: int, drawn: dict[str, Any], *, predicted: bool = True
) -> "Clients":  # fmt: skip
    """Those of a file, or as many as a number says. `predicted`: steps of those with a `system` are."""
    from etude.make.generate import Plan
    from etude.world.fleet.federated import drawn_clients, read_clients

    if text.isdecimal():
        if not drawn["link"]:
            raise UsageError(f"{text} clients need links", hint="--link 7..10Gb/s")
        if not 1 <= int(text) <= 1_000_000:
            raise UsageError(f"--clients: `{text}` is not a valid number of clients", hint="--clients 1000")
        return drawn_clients(
            int(text), link=drawn["link"], up=drawn["up"], step=drawn["step"] or "1s",
            available=drawn["available"] or "1", away=drawn["away"], seed=seed,
        )  # fmt: skip
    if given := [name for name, value in drawn.items() if value]:
        raise UsageError(
            f"--{given[0]} applies only to clients that are drawn", hint=f"a column of {text}, or --clients 1000"
        )

    def step_of(system: str) -> float:
        from etude.machine import open_system
        from etude.steps import predict

        if not predicted:
            return 0.0
        plan = Plan(gpus=1, micro_batch=micro_batch, global_batch=micro_batch)
        return predict(model, plan, open_system(system)).step_time_ns / 1e9

    return read_clients(Path(text), step_of)


def grouped(clients: "Clients", text: str) -> "tuple[Clients, Together | None]":
    """`20x50:available=0.9,away=5`, or `groups:...` of clients that have them."""
    from etude.base.figures import read
    from etude.world.fleet.federated import Together

    if not text:
        return clients, None
    shape, _, rest = text.partition(":")
    hint = "20x50:available=0.9,away=5"
    count, times, size = shape.partition("x")
    if shape == "groups":
        if not (clients.group >= 0).any():
            raise UsageError("--correlated: the clients have no groups", hint="a column `group`, or 20x50:...")
    elif times and count.isdecimal() and size.isdecimal():
        clients = clients.in_groups(int(count), int(size))
    else:
        raise UsageError(f"--correlated: `{shape}` is not a number of groups and their size", hint=hint)
    pairs = [pair.partition("=") for pair in rest.split(",") if pair]
    if bad := [pair for pair in pairs if not pair[2]]:
        raise UsageError(f"--correlated: `{bad[0][0]}` has no value", hint=hint)
    try:
        return clients, read(Together, {key.strip(): value for key, _, value in pairs}, "--correlated")
    except ClusterError as problem:
        raise UsageError(problem.problem, where=problem.where, hint=problem.hint) from None


def swarm_of(share: str, chunk: str, warmup: float, lag: str, peers: int) -> "Swarm | None":
    from etude.base.units import parse_bytes
    from etude.world.fleet.federated import Swarm

    if share not in ("server", "swarm", "swarm+warmup"):
        raise UsageError(f"--share: unknown method `{share}`", hint="server, swarm, swarm+warmup")
    if share == "server":
        return None
    size = parse_bytes(chunk)
    if size <= 0:
        raise UsageError(f"--chunk: {chunk} is not a positive size", hint="--chunk 16MB")
    warm = share == "swarm+warmup"
    if warm and not 0 <= warmup < 1:
        raise UsageError(f"--warmup: {warmup:g} is not a fraction between 0 and 1", hint="--warmup 0.1")
    return Swarm(
        chunk_bytes=float(size), warmup=warmup if warm else 0.0, lag_ns=seconds(lag, "--lag") * 1e9 if warm else 0.0,
        peers=peers,
    )  # fmt: skip


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    each, part = record["round_s"], record["participation"]
    rows: dict[str, Any] = {
        "rounds": f"{record['rounds']:,} in {record['duration_s'] / 3600:,.2f} h",
        "time per round": f"mean {each['mean']:,.2f} s, p50 {each['p50']:,.2f} s, p99 {each['p99']:,.2f} s",
        "answers": f"{record['answered']:,} of {record['drawn']:,} clients asked",
        "bytes": f"{record['down_bytes'] / 1e9:,.2f} GB down, {record['up_bytes'] / 1e9:,.2f} GB up",
        "clients": f"{record['clients']:,}, {record['never_taken']:,} of them never selected",
        "rounds per client": f"{part['min']:,} to {part['max']:,}, variance {part['variance']:,.2f}",
    }
    if "split" in record:
        from etude.surface.cli.federate_split import split_rows

        rows |= split_rows(record["split"])
    if record["share"] < 1:
        rows["trained"] = f"{record['share']:.1%} of the weights per client on average"
    if record["label_coverage"] is not None:
        rows["labels"] = f"{record['label_coverage']:.1%} of them per round"
    if record["of_bound"] is not None:
        rows["max-flow bound"] = f"{record['bound_s']:,.2f} s: {record['of_bound']:.1%} of a round"
        rows["warm-up"] = f"{record['warmup_share']:.1%} of a round" if record["warmup_share"] else None
        rows["delivered"] = f"{record['delivered']:.2%} of the updates of others"
    return {name: value for name, value in rows.items() if value is not None}
