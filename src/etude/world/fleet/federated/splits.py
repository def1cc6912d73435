"""planned(clients, ...): the cut of each client, and its work on its side of the cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from etude.base.errors import UsageError
from etude.base.grammar import line
from etude.kernels.arrays import F64, I64
from etude.world.fleet.federated.clients import Clients
from etude.world.fleet.federated.cuts import chosen, given
from etude.world.fleet.federated.split import ClientSplit, split_round
from etude.world.fleet.federated.split_costs import (
    WIDTH,
    ClientMemory,
    SplitModel,
    StepSeconds,
    held_by_cut,
    sides,
    whole_step_s,
)

if TYPE_CHECKING:
    from etude.machine import System
    from etude.make.generate.model import Model

AUTO: Final = "auto"
PARTS: Final = (8, 4, 2, 1)
"""Divisors of the longest length; `dirichlet` has a class for each."""
DRAWS: Final = 8
"""Number of sampled rounds on which cuts are tried."""


class ClientLengths:
    """Lengths of samples: tokens of each class, and its frequency for each client, [client, class]."""

    def __init__(self, text: str, longest: int, clients: int, seed: int) -> None:
        self.tokens = np.array([longest], np.int64)
        self.mix = np.ones((clients, 1))
        if not text:
            return
        word, value = line(text, "--lengths", "dirichlet, or dirichlet:0.5").cut(":")
        alpha = value.number(most=1e6) if value is not None else 1.0
        if word.text != "dirichlet" or not 0 < alpha < 1e6:
            raise word.wrong(f"unknown method `{text}`")
        if longest < PARTS[0]:
            raise UsageError(f"--lengths: {longest} tokens are too few to be shortened", hint="--seq 512")
        self.tokens = np.array([longest // part for part in PARTS], np.int64)
        self.mix = np.random.default_rng((seed, 13)).dirichlet(np.full(len(PARTS), alpha), clients)


def planned(
    clients: Clients, model: Model, how: str, *, rank: int, cut_rank: int, system: System, devices: int,
    micro_batch: int, seq: int, lengths: str, width: int, steps: int, count: int, limit: float, seed: int,
) -> ClientSplit:  # fmt: skip
    """The split of the model for all clients. `how`: a number of layers, or `auto`, which keeps at least one layer on
    the client, so that samples stay there (`auto:0`: no such limit); `width`: bytes per adapter weight in a transfer.
    Raises UsageError where a client's memory is too small."""
    asked = SplitModel(model, rank, cut_rank, micro_batch)
    drawn = ClientLengths(lengths, seq, len(clients), seed)
    _check(asked, system, seq)
    held = held_by_cut(asked, seq)
    server = [sides(asked, system, int(tokens)) for tokens in drawn.tokens]
    own, room = _own(clients, asked, system, server, drawn)
    fits = held.memory[None, :] <= room[:, None]
    tables = _Tables(clients, server, own, held, drawn, micro_batch * model.hidden * WIDTH, width, devices)
    fewest = _fewest(how, model.layers)
    if fewest is None:
        return tables.at(given(int(how), fits, clients.name))
    fits[:, :fewest] = False
    if not fits.any(axis=1).all():
        who = clients.name[int(np.flatnonzero(~fits.any(axis=1))[0])]
        raise UsageError(f"`{who}` does not have memory for {fewest} layers", hint="--split auto:0, or a smaller --seq")
    alone, load = tables.alone(steps)
    draws = _draws(len(clients), count, seed)

    def round_s(cuts: I64) -> float:
        split, total = tables.at(cuts), 0.0
        for number, who in enumerate(draws):
            which = split.lengths(who, steps, np.random.default_rng((seed, 17, number)))
            phases = split.phases(who, which, clients.up_bytes_per_s, clients.down_bytes_per_s)
            total += split_round(phases, devices, limit, len(who), np.inf).round_s
        return total / len(draws)

    return tables.at(chosen(alone, load, fits, devices * len(clients) / count, round_s))


def _fewest(how: str, layers: int) -> int | None:
    """Least number of layers on a client; None where `how` gives the number."""
    word, value = line(how, "--split", "auto, auto:2 or 8").cut(":")
    if word.text == AUTO:
        return 1 if value is None else value.count(zero=True, most=layers)
    if how.isdecimal():
        return None
    raise word.wrong(f"`{how}` is neither auto nor a number of layers")


def _check(asked: SplitModel, system: System, seq: int) -> None:
    from etude.make.generate.model import Family

    model = asked.model
    if model.family is not Family.DECODER:
        raise UsageError(f"`{model.name}` is not a decoder", hint="--split needs a decoder: llama3.2-1b")
    memory = system.device.memory_bytes
    if memory and held_by_cut(asked, seq).whole > memory:
        problem = f"`{model.name}` with adapters does not fit a device of the server"
        raise UsageError(problem, where=system.name, hint="--server-system dgx-h200, a smaller --micro-batch or --seq")


def _own(
    clients: Clients, asked: SplitModel, system: System, server: list[StepSeconds], drawn: ClientLengths
) -> tuple[list[list[StepSeconds]], F64]:
    """Times of each client by length, and its memory in bytes. For a client that gives its step time: the server's
    times, scaled by one factor."""
    from etude.machine import open_system

    room = np.full(len(clients), np.inf)
    found, known = [], {}
    usual = 0.0
    for i in range(len(clients)):
        name = clients.system[i] if clients.system else ""
        if name:
            if name not in known:
                machine = open_system(name)
                known[name] = [sides(asked, machine, int(t)) for t in drawn.tokens], machine.device.memory_bytes
            of, memory = known[name]
            found.append(of)
            room[i] = memory or np.inf
        else:
            usual = usual or whole_step_s(asked, system, int(drawn.tokens[-1]))
            slower = clients.step_s[i] / usual
            found.append([StepSeconds(one.forward_s * slower, one.backward_s * slower, one.server_s) for one in server])
        if clients.memory_bytes is not None and clients.memory_bytes[i]:
            room[i] = clients.memory_bytes[i]
    return found, room


def _draws(clients: int, count: int, seed: int) -> list[I64]:
    """Who takes part in each round that cuts are compared by. Several also where all do: lengths differ, and cuts for
    one round's lengths cost more in others."""
    if count == clients:
        return [np.arange(clients)] * DRAWS
    rng = np.random.default_rng((seed, 11))
    return [np.sort(rng.choice(clients, count, replace=False)) for _ in range(DRAWS)]


class _Tables:
    """Times and bytes of all clients, [client, cut, length]."""

    def __init__(
        self,
        clients: Clients,
        server: list[StepSeconds],
        own: list[list[StepSeconds]],
        held: ClientMemory,
        drawn: ClientLengths,
        token_bytes: int,
        width: int,
        devices: int,
    ) -> None:
        layers, n = len(held.adapters) - 1, len(clients)
        self.clients, self.mix, self.tokens, self.devices = clients, drawn.mix, drawn.tokens, devices
        self.forward_s, self.backward_s = (
            np.array([[getattr(side, name) for side in one] for one in own]).transpose(0, 2, 1)
            for name in ("forward_s", "backward_s")
        )
        self.server_s = np.broadcast_to(np.array([s.server_s for s in server]).T, (n, layers + 1, len(server)))
        border = np.ones(layers + 1)
        border[[0, -1]] = 0.0
        self.step_bytes = border[:, None] * (drawn.tokens * token_bytes)[None, :].astype(np.float64)
        self.adapter_bytes = held.adapters * width

    def alone(self, steps: int) -> tuple[F64, F64]:
        """Seconds of a round of each client by cut, averaged over lengths: in total if it is alone, and on a server's
        device."""
        up, down = self.clients.up_bytes_per_s[:, None], self.clients.down_bytes_per_s[:, None]
        compute = (self.forward_s + self.backward_s + self.server_s) * self.mix[:, None, :]
        sent = np.einsum("cl,nl->nc", self.step_bytes, self.mix)
        link = (steps * sent + self.adapter_bytes) * (1 / up + 1 / down)
        return steps * compute.sum(axis=2) + link, steps * (self.server_s * self.mix[:, None, :]).sum(axis=2)

    def at(self, cuts: I64) -> ClientSplit:
        rows, layers = np.arange(len(cuts)), len(self.adapter_bytes) - 1
        return ClientSplit(
            cut=cuts,
            forward_s=self.forward_s[rows, cuts],
            backward_s=self.backward_s[rows, cuts],
            server_s=np.asarray(self.server_s[rows, cuts]),
            step_bytes=self.step_bytes[cuts],
            adapter_bytes=self.adapter_bytes[cuts],
            mix=self.mix,
            tokens=self.tokens.astype(np.float64),
            local=cuts == layers,
            devices=self.devices,
        )
