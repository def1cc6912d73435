"""All algorithms. Closed forms and networks both read this table, and there is no other.

To add one, write a file in this folder with an `ALGORITHM`, and a line here.
"""

from __future__ import annotations

from typing import Final

from etude.cost.collectives import (
    direct,
    dissemination,
    get,
    halving_doubling,
    hierarchical,
    in_switch,
    one_shot,
    phased,
    put,
    rail,
    ring,
    ring_both,
    torus,
    tree,
)
from etude.cost.collectives.algorithm import Algorithm
from etude.model.schema import Collective

ALGORITHMS: Final[dict[str, Algorithm]] = {
    "ring": ring.ALGORITHM,
    "ring_both": ring_both.ALGORITHM,
    "tree": tree.ALGORITHM,
    "halving_doubling": halving_doubling.ALGORITHM,
    "direct": direct.ALGORITHM,
    "one_shot": one_shot.ALGORITHM,
    "in_switch": in_switch.ALGORITHM,
    "hierarchical": hierarchical.ALGORITHM,
    "torus": torus.ALGORITHM,
    "rail": rail.ALGORITHM,
    "phased": phased.ALGORITHM,
    "put": put.ALGORITHM,
    "get": get.ALGORITHM,
    "dissemination": dissemination.ALGORITHM,
}

BY_COLLECTIVE: Final[dict[Collective, dict[str, Algorithm]]] = {
    kind: there
    for kind in Collective
    if (there := {name: a for name, a in ALGORITHMS.items() if a.carried_as(kind) is not None})
}
"""A barrier is an all-reduce of nothing, or has an algorithm of its own."""
