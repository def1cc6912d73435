"""Nodes ranked by their figures; what is slow on one of them, and which part of it that is.

A figure is slow where it is below that of its peers, or of its own past, by more than both the least slow-down that is
asked for and what the repetitions of the two vary by. Which part is to blame follows from which figures are slow:

    a device    its products or its memory are slow; other devices of the node may be well
    a link      transfers are slow, the devices and the host are well
    the host    Python and dispatch are slow, or other work has the CPUs; figures that a slow host drags along are not
                counted again
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from etude.base.errors import UsageError
from etude.run.qualify.node import CPU_SHARE, NodeFigure, QualifiedNode

LEAST: Final = 0.05
"""Slow-down that is named by default."""
SURE: Final = 4.0
"""A difference counts from this many spreads on."""
BUSY: Final = 0.9
"""A host is busy where a thread of its own gets a CPU for less than this part of the time. It needs nothing to be held
against, and no spread: nothing but other work takes a CPU away."""


@dataclass(frozen=True, slots=True)
class Qualified:
    """What came of comparing nodes."""

    ranking: list[dict[str, Any]]
    """One row per node, the slowest first: speed against the median node by part, and of the worst part."""
    findings: list[dict[str, Any]]
    """A row for each part of a node that is slow: node, part, device, against, slow_down, figures. `against` is
    `peers`, `past`, or `idle`: itself without other work on its CPUs."""
    uncertain: list[str]
    """Figures of this node that are lower, but not by more than they vary."""
    compared: int
    """Figures that had something to be compared with."""


def qualify(
    node: QualifiedNode,
    others: Sequence[QualifiedNode] = (),
    baseline: QualifiedNode | None = None,
    *,
    least: float = LEAST,
) -> Qualified:
    """Holds a node, and the others, against the median of all; and the node against its own past."""
    if least < 0:
        raise UsageError(f"a slowdown of {least} is not valid", where="--least", hint="0.05 is 5%")
    names = [n.name for n in (node, *others)]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        hint = "measure one again with --name"
        raise UsageError(f"two nodes have the name `{min(twice)}`", where="--against", hint=hint)
    nodes = [node, *others]
    findings: list[dict[str, Any]] = []
    uncertain: set[str] = set()
    compared = 0
    ranking = []
    for one in nodes:
        rest = [other for other in nodes if other is not one]
        held = _against_peers(one, rest)
        if one is node:
            compared += len(held)
            uncertain |= _uncertain(held, least)
        findings += _busy(one)
        findings += _findings(one, held, "peers", least)
        ranking.append(_row(one, held))
    if baseline is not None:
        past = _against(node, [baseline])
        compared += len(past)
        uncertain |= _uncertain(past, least)
        findings += _findings(node, past, "past", least)
    if not compared and (others or baseline is not None):
        raise UsageError(
            "this node has no figure in common with the others",
            where="--against",
            hint="were they measured with the same options and kind of devices?",
        )
    ranking.sort(key=lambda row: (row["worst"] if row["worst"] is not None else math.inf, row["node"]))
    return Qualified(ranking, findings, sorted(uncertain), compared)


@dataclass(frozen=True, slots=True)
class _Held:
    """A figure, and what it is compared with."""

    figure: NodeFigure
    ratio: float
    """Its value as a share of the reference."""
    doubt: float
    """What the two vary by, as a share."""


def _against_peers(node: QualifiedNode, rest: Sequence[QualifiedNode]) -> list[_Held]:
    """Held against the other nodes, and devices against their neighbours on the node too."""
    held = _against(node, rest)
    known = {one.figure.key for one in held}
    for figure in node.figures:
        alike = [
            f for f in node.figures if f.name == figure.name and f.part == figure.part and f.device != figure.device
        ]
        if figure.key not in known and len(alike) > 1:
            held.append(_one(figure, alike))
    return held


def _against(node: QualifiedNode, rest: Sequence[QualifiedNode]) -> list[_Held]:
    values: dict[tuple[str, str], list[NodeFigure]] = {}
    for other in rest:
        for figure in other.figures:
            values.setdefault(figure.key, []).append(figure)
    return [_one(figure, values[figure.key]) for figure in node.figures if figure.key in values]


def _one(figure: NodeFigure, peers: Sequence[NodeFigure]) -> _Held:
    reference = median(peer.value for peer in peers)
    within = median(peer.spread for peer in peers)
    between = median(abs(peer.value - reference) for peer in peers) / reference
    return _Held(figure, figure.value / reference, SURE * max(figure.spread, within, between))


def _busy(node: QualifiedNode) -> list[dict[str, Any]]:
    """Other work has the CPUs of the host."""
    share = next((f.value for f in node.figures if f.name == CPU_SHARE), 1.0)
    if share >= BUSY:
        return []
    return [
        {
            "node": node.name,
            "part": "host",
            "device": "",
            "against": "idle",
            "slow_down": round(1 / share - 1, 4),
            "figures": f"{CPU_SHARE} {share:.0%}",
        }
    ]


def _slow(held: Sequence[_Held], least: float) -> list[_Held]:
    return [one for one in held if one.ratio < 1 - max(least, min(one.doubt, 0.9))]


def _uncertain(held: Sequence[_Held], least: float) -> set[str]:
    sure = _slow(held, least)
    return {one.figure.name for one in held if one.ratio < 1 - least and one not in sure}


def _findings(node: QualifiedNode, held: Sequence[_Held], against: str, least: float) -> list[dict[str, Any]]:
    slow, busy, name = _slow(held, least), bool(_busy(node)), node.name
    slow = [one for one in slow if not _dragged_along(one.figure, slow, held, busy)]
    found = []
    for part, device in sorted({(one.figure.part, one.figure.device) for one in slow}):
        mine = [one for one in slow if (one.figure.part, one.figure.device) == (part, device)]
        found.append({
            "node": name, "part": part, "device": device, "against": against,
            "slow_down": round(1 / min(one.ratio for one in mine) - 1, 4),
            "figures": ", ".join(f"{one.figure.name} {one.ratio - 1:+.1%}" for one in mine),
        })  # fmt: skip
    return found


def _dragged_along(figure: NodeFigure, slow: Sequence[_Held], held: Sequence[_Held], busy: bool) -> bool:
    """Is a figure slow because of another part that is? A job is slow with any part of it. A slow host makes small
    messages slow; and where the CPU is the device, what it computes and carries too."""
    parts = {one.figure.part for one in slow} | ({"host"} if busy else set())
    if figure.part == "replay":
        return parts != {"replay"}
    if figure.part == "host" or "host" not in parts:
        return False
    return figure.unit == "calls/s" or not any(one.figure.device.startswith("cuda") for one in held)


def _row(node: QualifiedNode, held: Sequence[_Held]) -> dict[str, Any]:
    row: dict[str, Any] = {"node": node.name}
    shares = {}
    for part in ("device", "link", "host", "replay"):
        # The slowest device speaks for the node: a step waits for it.
        devices = {one.figure.device for one in held if one.figure.part == part}
        means = [_mean([o.ratio for o in held if (o.figure.part, o.figure.device) == (part, d)]) for d in devices]
        shares[part] = round(min(means), 4) if means else None
    known = [share for share in shares.values() if share is not None]
    return row | shares | {"worst": min(known) if known else None}


def _mean(ratios: Sequence[float]) -> float:
    """Geometric: twice as fast and half as fast are as good as equal."""
    return math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))
