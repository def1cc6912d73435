"""Federated rounds as they are asked for: with a server, as a swarm, with split clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from etude.base.errors import ClusterError, UsageError
from etude.base.figures import argument, figure, switch, text
from etude.base.grammar import fill, line
from etude.base.parameters import is_given, only_with, spelled
from etude.make.generate import Plan
from etude.world.clock import run_alone
from etude.world.fleet.days.request import MODEL_HELP
from etude.world.fleet.federated.clients import Clients, drawn_clients, read_clients
from etude.world.fleet.federated.presence import GroupPresence
from etude.world.fleet.federated.results import Federated
from etude.world.fleet.federated.rounds import FederatedRounds, RoundRules, fastest_s, rounds_of
from etude.world.fleet.federated.shares import PARTS, trained
from etude.world.fleet.federated.splits import planned
from etude.world.fleet.federated.swarm import Swarm

if TYPE_CHECKING:
    from etude.machine import System
    from etude.make.generate.model import Model

CLIENTS, ROUNDS_PANEL, SWARM, SPLIT = "Clients", "Rounds", "Swarm", "Split training"
MOST_CLIENTS: Final = 1_000_000
DRAWN: Final = ("link", "up", "step", "available", "away")
SERVER_HELP: Final = "link of the server, in each direction: `10Gb/s`; default: no limit"
QUORUM_HELP: Final = "a round ends after this many answers; 0: after the last"


class Sent(StrEnum):
    """Data types of weights that are sent."""

    BF16 = "bf16"
    FP32 = "fp32"


class ClientSampling(StrEnum):
    """How clients are drawn; see sampling.py."""

    UNIFORM = "uniform"
    PSP = "psp"
    WEIGHTED = "weighted"
    AWPSP = "awpsp"


class Spreading(StrEnum):
    SWARM = "swarm"
    WARM = "swarm+warmup"


@dataclass(frozen=True, kw_only=True)
class AnyRounds:
    """What all rounds have in common."""

    model: Any = argument("noun", MODEL_HELP, like="llama3.2-3b")
    clients: Any = figure("noun", "CSV file of clients, or their number", like=["groups.csv", "12"], panel=CLIENTS)
    link: str = text("with a number: downlink and uplink of each: `7..10Gb/s`", like="1..2Gb/s", panel=CLIENTS)
    up: str = text("with a number: uplink of each, if different from the downlink", like="1Gb/s", panel=CLIENTS)
    step: str = text(
        "with a number: time of a local step that trains the whole model: `1..4s`", like="2s", panel=CLIENTS
    )
    available: str = text(
        "with a number: fraction of the rounds in which a client is available: `0.5..0.9`",
        like="0.5..0.9",
        panel=CLIENTS,
    )
    away: float = figure(
        "number",
        "with a number: rounds that an absence lasts; 0: drawn anew each round",
        0.0,
        needs="available",
        panel=CLIENTS,
    )
    correlated: str = text(
        "groups of clients that are absent together: `20x50:available=0.9,away=5`; `groups:available=0.9` uses the "
        "groups of a CSV file",
        like="groups:available=0.9",
        panel=CLIENTS,
    )
    labels: int = figure(
        "count", "number of labels, dealt to groups or clients; 0: as the CSV file says", 0, panel=CLIENTS
    )
    leave: bool = switch("a client that is absent in the next round has not answered in this one", panel=CLIENTS)
    rounds: int = figure("count", "rounds", 100, panel=ROUNDS_PANEL)
    count: int = figure("count", "clients per round; 0: all", 0, panel=ROUNDS_PANEL)
    steps: int = figure("count", "local steps of a client per round", 1, panel=ROUNDS_PANEL)
    micro_batch: int = figure("count", "samples per local step, where its time is predicted", 1, panel=ROUNDS_PANEL)
    precision: Sent = figure("choice", "data type of the weights that are sent", Sent.BF16, panel=ROUNDS_PANEL)
    sample: ClientSampling = figure(
        "choice",
        "how clients are drawn: uniform (psp), weighted (by samples), awpsp (by availability)",
        ClientSampling.UNIFORM,
        needs="count",
        panel=ROUNDS_PANEL,
    )
    deadline_ns: float | None = figure(
        "time", "answers after this time are discarded: `10min`", None, panel=ROUNDS_PANEL
    )
    seed: int = figure("count", "random seed", 0, panel=ROUNDS_PANEL)


@dataclass(frozen=True, kw_only=True)
class RoundsRequest(AnyRounds):
    """Federated rounds with a server: clients of mixed devices and links, sampled."""

    train: str = text(
        "full; share:0.3; share:auto, as much as can be done by the deadline",
        like=["share:0.3", "full"],
        panel=ROUNDS_PANEL,
    )
    parts: int = figure("count", "number of equal parts that shares consist of", PARTS, most=10_000, panel=ROUNDS_PANEL)
    quorum: int = figure("count", QUORUM_HELP, 0, panel=ROUNDS_PANEL)
    server_bytes_per_s: float | None = figure("bandwidth", SERVER_HELP, None, zero=True, panel=ROUNDS_PANEL)


@dataclass(frozen=True, kw_only=True)
class SwarmRequest(AnyRounds):
    """Federated rounds as a swarm: clients pass their updates to one another in chunks."""

    share: Spreading = figure(
        "choice", "how updates are distributed: swarm, or after a warm-up", Spreading.SWARM, panel=SWARM
    )
    chunk_bytes: float = figure("bytes", "size of a chunk", 16e6, panel=SWARM)
    peers: int = figure("count", "number of other clients that a client knows; 0: all", 0, panel=SWARM)
    warmup: float = figure(
        "number",
        "fraction of the chunks that every client holds after the warm-up",
        0.1,
        zero=True,
        like="0.3",
        needs="share=swarm+warmup",
        panel=SWARM,
    )
    lag_ns: float = figure(
        "time", "longest lag of a client in the warm-up", 0.0, needs="share=swarm+warmup", panel=SWARM
    )
    train: str = text("full: all weights, whatever the file says of shares", like="full", panel=SWARM)


@dataclass(frozen=True, kw_only=True)
class SplitRequest(AnyRounds):
    """Split training: clients hold the layers below a cut, a server the rest."""

    split: str = figure(
        "text",
        "number of layers that a client holds; the server has the rest: `8`; `auto`: each client has its own cut, with "
        "one layer at least (`auto:0`: or none)",
        "auto",
        like="8",
        panel=SPLIT,
    )
    lora: int = figure("count", "rank of the adapters that are trained", like="8", panel=SPLIT)
    lora_cut: int = figure(
        "count", "rank of the adapter in the last layer of a client; 0: the same as --lora", 0, panel=SPLIT
    )
    server_system: Any = figure(
        "noun", "system whose devices compute for the server", "dgx-h100", like="a10", panel=SPLIT
    )
    server_devices: int = figure("count", "devices of the server, each for one client at a time", 1, panel=SPLIT)
    seq: int = figure("count", "tokens of the longest sample", 1024, panel=SPLIT)
    lengths: str = text(
        "`dirichlet:0.5`: samples of 1/8, 1/4, 1/2 and all of --seq, each client with its own mix; default: all are of "
        "length --seq",
        like="dirichlet:0.5",
        panel=SPLIT,
    )
    quorum: int = figure("count", QUORUM_HELP, 0, panel=ROUNDS_PANEL)
    server_bytes_per_s: float | None = figure("bandwidth", SERVER_HELP, None, zero=True, panel=ROUNDS_PANEL)
    train: str = text("full: all adapters, whatever the file says of shares", like="full", panel=SPLIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    split: str
    lora: int
    lora_cut: int
    system: System
    devices: int
    seq: int
    lengths: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """Clients: of a file, a number of them, or themselves."""

    of: Any
    """A path, a number, or `Clients`."""
    columns: frozenset[str] = frozenset()
    """Columns of the file."""
    link: str = ""
    up: str = ""
    step: str = ""
    available: str = ""
    away: float = 0.0

    def has(self, column: str) -> bool:
        """Whether the clients may differ from the usual in this."""
        return isinstance(self.of, Clients) or column in self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsInputs:
    model: Model
    who: Who
    correlated: str
    labels: int
    rounds: int
    micro_batch: int
    precision: str
    train: str
    cut: Cut | None
    seed: int
    rules: RoundRules
    """Without the size of the model, and with a count of 0 for all clients."""


def rounds_inputs(asked: RoundsRequest) -> RoundsInputs:
    return _inputs(asked, train=asked.train, parts=_parts, **_server(asked))


def swarm_inputs(asked: SwarmRequest) -> RoundsInputs:
    warm = asked.share == Spreading.WARM
    try:
        swarm = Swarm(
            chunk_bytes=float(asked.chunk_bytes),
            peers=asked.peers,
            warmup=asked.warmup if warm else 0.0,
            lag_ns=asked.lag_ns if warm else 0.0,
        )
    except ClusterError as problem:
        raise UsageError(f"{spelled(asked, 'warmup')}: {problem.problem}", hint=problem.hint) from None
    return _inputs(asked, train=_full(asked), swarm=swarm)


def split_inputs(asked: SplitRequest) -> RoundsInputs:
    from etude.machine import open_system

    lora, lora_cut, system = asked.lora, asked.lora_cut, asked.server_system
    if lora_cut > lora:
        problem = f"{spelled(asked, 'lora_cut')}: {lora_cut} is more than {spelled(asked, 'lora')} {lora}"
        raise UsageError(problem, hint="--lora-cut 4")
    cut = Cut(
        split=asked.split,
        lora=lora,
        lora_cut=lora_cut or lora,
        system=open_system(system) if isinstance(system, str) else system,
        devices=asked.server_devices,
        seq=asked.seq,
        lengths=asked.lengths,
    )
    return _inputs(asked, train=_full(asked), cut=cut, **_server(asked))


def _full(asked: Any) -> str:
    train: str = asked.train
    if train not in ("", "full"):
        raise UsageError(f"{spelled(asked, 'train')}: `{train}` needs rounds with a server", hint="etude federate")
    return train


def _server(asked: Any) -> dict[str, Any]:
    """Rules of rounds with a server."""
    limit = asked.server_bytes_per_s
    if limit is not None and not limit:
        hint = f"leave {spelled(asked, 'server')} out for no limit"
        raise UsageError(f"{spelled(asked, 'server')}: a link of 0 carries nothing", hint=hint)
    return {"quorum": asked.quorum, "server_bytes_per_s": float(limit or 0.0)}


def _parts(asked: RoundsRequest, who: Who) -> int:
    """Parts of shares, where clients train shares."""
    if asked.train.startswith("share") or (not asked.train and who.has("share")):
        return asked.parts
    if asked.train == "full" and is_given(asked, "parts"):
        raise UsageError(f"{spelled(asked, 'parts')} is not read with {spelled(asked, 'train')} full", hint="share:0.3")
    only_with(asked, "train", "parts")
    return PARTS


def _inputs(
    asked: Any,
    *,
    train: str,
    parts: Callable[[Any, Who], int] = lambda asked, who: PARTS,
    cut: Cut | None = None,
    **rules: Any,
) -> RoundsInputs:
    """Inputs of any rounds; each parameter is read where the clients give it a meaning."""
    from etude.make.generate.model import open_model

    model, count, correlated, who = asked.model, asked.count, asked.correlated, _who(asked)
    absent = bool(who.available) or who.has("available") or bool(correlated)
    if not absent and is_given(asked, "leave"):
        hint = f"{spelled(asked, 'available')}, {spelled(asked, 'correlated')}, or a column `available`"
        raise UsageError(f"{spelled(asked, 'leave')} is read only where clients can be absent", hint=hint)
    drawn = isinstance(who.of, int) or count or absent or who.has("drops") or "swarm" in rules or (cut and cut.lengths)
    if not drawn and is_given(asked, "seed"):
        problem = f"{spelled(asked, 'seed')}: nothing is drawn, since all clients of the file take part in every round"
        raise UsageError(problem, hint=f"{spelled(asked, 'count')} 4")
    predicted = cut is not None or who.has("system")
    if not predicted and is_given(asked, "micro_batch"):
        problem = f"{spelled(asked, 'micro_batch')} is read only where the time of a step is predicted"
        raise UsageError(problem, hint="a column `system` of the clients")
    deadline_ns = asked.deadline_ns
    rules |= {
        "deadline_s": 0.0 if deadline_ns is None else deadline_ns / 1e9,
        "leave": asked.leave if absent else False,
    }
    return RoundsInputs(
        model=open_model(model) if isinstance(model, str) else model, who=who, correlated=correlated,
        labels=asked.labels, rounds=asked.rounds, micro_batch=asked.micro_batch if predicted else 1,
        precision=str(asked.precision), train=train, cut=cut, seed=asked.seed if drawn else 0,
        rules=RoundRules(
            model_bytes=0.0, count=count, steps=asked.steps, sample=str(asked.sample), parts=parts(asked, who), **rules
        ),
    )  # fmt: skip


def _who(asked: Any) -> Who:
    clients = asked.clients
    is_number = isinstance(clients, str) and clients.isdecimal()
    if not is_number:
        for name in DRAWN:
            if is_given(asked, name):
                hint = f"a column of {clients}, or --clients 1000" if isinstance(clients, str) else "--clients 1000"
                raise UsageError(f"{spelled(asked, name)} applies only to clients that are drawn", hint=hint)
        return Who(of=clients, columns=_columns(clients) if isinstance(clients, str) else frozenset())
    if not asked.link:
        raise UsageError(f"{spelled(asked, 'clients')}: {clients} clients need links", hint="--link 7..10Gb/s")
    if not 1 <= int(clients) <= MOST_CLIENTS:
        raise UsageError(
            f"{spelled(asked, 'clients')}: `{clients}` is not a valid number of clients", hint="--clients 1000"
        )
    return Who(
        of=int(clients), link=asked.link, up=asked.up, step=asked.step, available=asked.available, away=asked.away
    )


def _columns(path: str) -> frozenset[str]:
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            return frozenset(name.strip() for name in file.readline().split(","))
    except (OSError, UnicodeDecodeError):
        return frozenset()  # whoever reads it says so


# -- the run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rounds:
    found: Federated
    model_bytes: float
    notes: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        return self.found.summary() | {"model_bytes": self.model_bytes}


def asked_rounds(given: RoundsInputs, *, together: GroupPresence | None = None, split: Any = None) -> FederatedRounds:
    """The rounds before the first; `together` and `split` are for programs that have made their own."""
    weights, asked = weight_bytes(given.model, given.precision), given.rules
    who, groups = grouped(_clients(given), given.correlated)
    who = who.with_labels(given.labels) if given.labels else who
    who = trained(
        who, given.train, model_bytes=weights, steps=asked.steps, deadline_s=asked.deadline_s, parts=asked.parts
    )
    count = asked.count or len(who)
    if given.cut is not None:
        split = _planned(given, given.cut, who, min(count, len(who)))
    rules = replace(asked, model_bytes=weights, count=count, split=split)
    return rounds_of(who, rules, rounds=given.rounds, together=groups or together, seed=given.seed)


def run_rounds(given: RoundsInputs, **own: Any) -> Rounds:
    """All rounds; `own` as `asked_rounds` has it."""
    made = run_alone(asked_rounds(given, **own))
    found, rules = made.found(), made.rules
    notes = [f"assumed {given.model.assumed}"] if given.model.assumed else []
    if not found.column("answered").any():
        notes.append(
            f"no client answered in any of the {given.rounds:,} rounds: the deadline of {rules.deadline_s:g} s is too "
            "early, and nothing was trained; bytes down are those that were sent until then"
        )
        if rules.swarm is None and rules.split is None:
            notes.append(f"the fastest client needs {fastest_s(made.clients, rules):,.3g} s for an answer, or more")
    return Rounds(found, rules.model_bytes, tuple(notes))


def _planned(given: RoundsInputs, cut: Cut, who: Clients, count: int) -> Any:
    return planned(
        who, given.model, cut.split, rank=cut.lora, cut_rank=cut.lora_cut, system=cut.system, devices=cut.devices,
        micro_batch=given.micro_batch, seq=cut.seq, lengths=cut.lengths, width=2 if given.precision == "bf16" else 4,
        steps=given.rules.steps, count=count, limit=given.rules.server_bytes_per_s, seed=given.seed,
    )  # fmt: skip


def weight_bytes(model: Model, precision: str) -> float:
    from etude.make.generate.train import plan_memory

    return float(sum(memory.weights for memory in plan_memory(model, Plan.from_dict({"precision": precision}, "plan"))))


def _clients(given: RoundsInputs) -> Clients:
    """Those of a file, or as many as a number says. Steps of clients with a `system` are predicted, but for a split."""
    who = given.who
    if isinstance(who.of, Clients):
        return who.of
    if isinstance(who.of, int):
        return drawn_clients(
            who.of, link=who.link, up=who.up, step=who.step or "1s", available=who.available or "1", away=who.away,
            seed=given.seed,
        )  # fmt: skip

    def step_of(system: str) -> float:
        from etude.machine import open_system
        from etude.steps import predict

        if given.cut is not None:
            return 0.0
        plan = Plan(gpus=1, micro_batch=given.micro_batch, global_batch=given.micro_batch)
        return predict(given.model, plan, open_system(system)).step_time_ns / 1e9

    return read_clients(who.of, step_of)


def grouped(clients: Clients, text: str) -> tuple[Clients, GroupPresence | None]:
    """`20x50:available=0.9,away=5`, or `groups:...` of clients that have them."""
    if not text:
        return clients, None
    shape, rest = line(text, "--correlated", "20x50:available=0.9,away=5").cut(":")
    together = fill(GroupPresence, rest.split(",") if rest is not None and rest.text else (), rest or shape)
    count, size = shape.cut("x")
    if shape.text == "groups":
        if not (clients.group >= 0).any():
            raise shape.wrong("the clients have no groups", "a column `group`, or 20x50:...")
        return clients, together
    if size is None:
        raise shape.wrong(f"`{shape.text}` is not a number of groups and their size")
    return clients.in_groups(count.count(zero=True), size.count(zero=True)), together


ROUNDS: Final[dict[str, tuple[type[Any], Callable[[Any], RoundsInputs], Callable[..., Rounds]]]] = {
    "server": (RoundsRequest, rounds_inputs, run_rounds),
    "swarm": (SwarmRequest, swarm_inputs, run_rounds),
    "split": (SplitRequest, split_inputs, run_rounds),
}
"""How updates are distributed -> what may be asked, its inputs and its run."""
