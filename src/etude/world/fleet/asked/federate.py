"""`etude federate`: federated rounds, where they are written, and what a reader sees of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from etude.base.figures import part
from etude.base.outputs import Printed, Written
from etude.base.parameters import request_of
from etude.world.fleet.asked.kept import FleetInputs, kept, tell
from etude.world.fleet.federated.request import (
    ROUNDS,
    RoundsInputs,
    RoundsRequest,
    SplitRequest,
    SwarmRequest,
    run_rounds,
)
from etude.world.scenario import PrintedScenario, ScenarioText, only_workload, workload_of


@dataclass(frozen=True, kw_only=True)
class KeptRounds(PrintedScenario, Written):
    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class Federate(KeptRounds, RoundsRequest):
    """Federated rounds: clients of mixed devices and links, sampled, with a server or as a swarm

    etude federate resnet-50 --clients clients.csv --count 4 --sample weighted
    etude federate gpt2 --clients clients.csv --steps 10 --deadline 10min --server 1Gb/s
    etude federate resnet-50 --clients clients.csv --train share:auto --deadline 60s
    etude federate resnet-50 --clients 1000 --link 10..50Mb/s --count 50 \\
        --available 0.3..0.9 --away 4 --sample awpsp \\
        --correlated 20x50:available=0.8,away=10 -o rounds/

    Clients are rows of a CSV: `down` and `up` (100Mb/s), `step_s` or `system` (a step there is predicted), and where
    they are not as usual `name`, `available`, `away`, `drops`, `samples`, `share`, `group`, `label`, `memory`. Or they
    are a number, and figures are drawn between bounds. The same seed gives the same clients and absences to every way
    to sample.
    """


@dataclass(frozen=True, kw_only=True)
class Swarming(KeptRounds, SwarmRequest):
    """Federated rounds as a swarm: clients pass their updates to one another in chunks

    etude federate swarm llama3-70b --clients 100 --link 7..10Gb/s \\
        --share swarm+warmup --lag 10min --chunk 1GB --rounds 1
    etude federate swarm gpt2 --clients clients.csv --rounds 5
    etude federate swarm gpt2 --clients 20 --link 1Gb/s --available 0.9 --rounds 5
    """


@dataclass(frozen=True, kw_only=True)
class Splitting(KeptRounds, SplitRequest):
    """Split training: clients hold the layers below a cut, a server the rest; adapters are trained

    etude federate split llama3.2-1b --clients clients.csv --lora 16 --lora-cut 4 \\
        --steps 10 --lengths dirichlet
    etude federate split llama3.2-1b --clients 20 --link 1Gb/s --available 0.9 \\
        --split 8 --lora 16 --server-system a10
    """


def inputs(kind: str) -> Callable[[Any], FleetInputs]:
    """What the rounds of a kind are."""

    return kept(ROUNDS[kind][1])


def rounds_scenario(asked: Any, made: FleetInputs) -> ScenarioText:
    """These rounds alone, on a machine for what a server computes."""
    given: RoundsInputs = made.inputs
    workload, nodes = workload_of(asked, "federate", but=("server_system", "seed")), 1
    if given.rules.swarm is not None:
        workload["share"] = str(asked.share)
    if given.cut is not None:
        nodes = -(-given.cut.devices // given.cut.system.levels[0].size)
    system = str(request_of(asked).given.get("server_system", "dgx-h100"))
    return only_workload("rounds", workload, system=system, nodes=nodes, **({"seed": given.seed} if given.seed else {}))


def run(given: FleetInputs) -> dict[str, Any]:
    made = run_rounds(given.inputs)
    tell(made.notes)
    record = made.record()
    given.write(made.found.tables(), record)
    return record


def readable(record: dict[str, Any]) -> Any:
    """The figures of all rounds."""
    each, taken = record["round_s"], record["participation"]
    rows: dict[str, Any] = {
        "rounds": f"{record['rounds']:,} in {record['duration_s'] / 3600:,.2f} h",
        "time per round": f"mean {each['mean']:,.2f} s, p50 {each['p50']:,.2f} s, p99 {each['p99']:,.2f} s",
        "answers": f"{record['answered']:,} of {record['drawn']:,} clients asked"
        if record["answered"]
        else f"none: {record['drawn']:,} clients asked, and no answer was in time",
        "bytes": f"{record['down_bytes'] / 1e9:,.2f} GB down, {record['up_bytes'] / 1e9:,.2f} GB up",
        "clients": f"{record['clients']:,}, {record['never_taken']:,} of them never selected",
        "rounds per client": f"{taken['min']:,} to {taken['max']:,}, variance {taken['variance']:,.2f}",
    }
    if "split" in record:
        rows |= _split_rows(record["split"])
    if record["share"] < 1:
        rows["trained"] = f"{record['share']:.1%} of the weights per client on average"
    if record["label_coverage"] is not None:
        rows["labels"] = f"{record['label_coverage']:.1%} of them per round"
    if record["of_bound"] is not None:
        rows["max-flow bound"] = f"{record['bound_s']:,.2f} s: {record['of_bound']:.1%} of a round"
        rows["warm-up"] = f"{record['warmup_share']:.1%} of a round" if record["warmup_share"] else None
        rows["delivered"] = f"{record['delivered']:.2%} of the updates of others"
    return {name: value for name, value in rows.items() if value is not None}


def _split_rows(record: dict[str, Any]) -> dict[str, Any]:
    cuts = ", ".join(f"{n:,} after layer {cut}" for cut, n in record["cuts"].items())
    return {
        "cuts": cuts,
        "sent per step": f"{record['step_bytes'] / 1e6:,.2f} MB of activations and gradients",
        "adapters": f"{record['adapter_bytes'] / 1e6:,.2f} MB per client, in each direction per round",
        "server": f"{record['devices']:,} devices in use {record['load']:.1%}, "
        f"{record['wait_s']:,.2f} s waiting time per answer",
    }
