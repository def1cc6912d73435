"""Training a part of the weights: every layer is cut into equal parts, and a client trains some of them.

Of a step's three products (forward, gradients of activations, gradients of weights) only the last shrinks with the
share, and so does what a client sends; it receives all weights.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from etude.base.errors import UsageError
from etude.base.grammar import line
from etude.kernels.arrays import F64, I64
from etude.world.fleet.federated.clients import Clients

PARTS: Final = 20
"""Default number of parts of a layer."""


def work(share: F64) -> F64:
    """Work of a step that trains a share, relative to one that trains everything: 2PT + 2PT + share·2PT of 6PT."""
    return (2.0 + share) / 3.0


def trained(clients: Clients, how: str, *, model_bytes: float, steps: int, deadline_s: float, parts: int) -> Clients:
    """`full`, `share:0.3`, or `share:auto`: the largest share with which a client answers before the deadline, on
    unshared links, and at least one part. Empty: from the clients."""
    if not how:
        return clients
    if how == "full":
        return clients.with_share(np.ones(len(clients)))
    word, value = line(how, "--train", "full, share:0.3, share:auto").cut(":")
    if word.text != "share" or value is None:
        raise word.wrong(f"unknown method `{how}`")
    if value.text != "auto":
        return clients.with_share(np.full(len(clients), value.fraction()))
    if not deadline_s:
        raise UsageError("--train share:auto: a deadline is needed", hint="--deadline 60s")
    busy, down, up = (
        steps * clients.step_s,
        model_bytes / clients.down_bytes_per_s,
        model_bytes / clients.up_bytes_per_s,
    )
    most = (deadline_s - down - busy * 2 / 3) / (busy / 3 + up)
    return clients.with_share(np.clip(np.floor(most * parts + 1e-9), 1, parts) / parts)


def first_part(clients: Clients, parts: int) -> tuple[I64, I64]:
    """The first part that each client trains, and how many: assigned round robin, so that all are trained equally."""
    many = np.maximum(np.round(clients.share * parts).astype(np.int64), 1)
    return np.concatenate([[0], np.cumsum(many)[:-1]]) % parts, many


def untrained(first: I64, many: I64, parts: int) -> float:
    """Fraction of the parts that none of these trains."""
    edges = np.zeros(2 * parts + 1, np.int64)
    np.add.at(edges, first, 1)
    np.add.at(edges, first + many, -1)
    depth = np.cumsum(edges)[: 2 * parts]
    return float(np.mean(depth[:parts] + depth[parts:] == 0))
