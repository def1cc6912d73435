"""Recovery: what a job does when it has lost nodes, or when they come back. A policy is a plain function.

    def mine(view: View) -> str:
        return "spare" if view.spare_nodes else "shrink"

It is called when a fault has been noticed and when nodes come back, and returns one of ANSWERS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from etude.base.errors import ClusterError, UsageError
from etude.base.figures import figure, text
from etude.world.fleet.costs import REDISTRIBUTE, REPLAN, RESTART, SHRINK

SPARE, WAIT, STAY = "spare", "wait", "stay"
ANSWERS: Final = (RESTART, SPARE, SHRINK, REDISTRIBUTE, REPLAN, WAIT, STAY)
"""restart: all processes start again on as many nodes as planned; spare: the others stay, new nodes replace lost ones;
shrink: fewer replicas, each with its share of the batch; redistribute: fewer replicas, the same batch; replan: another
plan; wait: for repairs; stay: no change."""


class View(NamedTuple):
    now_s: float
    lost: bool
    """True: nodes or processes were lost. False: nodes came back."""
    scope: str
    nodes_needed: int
    nodes_up: int
    nodes_in_job: int
    spare_nodes: int
    """Nodes that are up and not in the job."""
    next_repair_s: float | None
    slow: float = 1.0
    """Slowdown of the job's slowest node, once noticed; the answer `replan` then distributes micro-batches by speed."""


Policy = Callable[[View], str]


def restart(view: View) -> str:
    return RESTART if view.lost else STAY


def spare(view: View) -> str:
    """Waits for repairs if too few nodes are up."""
    return (SPARE if view.nodes_up >= view.nodes_needed else WAIT) if view.lost else STAY


def shrink(view: View) -> str:
    return SHRINK if view.slow == 1.0 else STAY


def redistribute(view: View) -> str:
    return REDISTRIBUTE if view.slow == 1.0 else STAY


def replan(view: View) -> str:
    return REPLAN


POLICIES: Final[dict[str, Policy]] = {
    "restart": restart,
    "spare": spare,
    "shrink": shrink,
    "redistribute": redistribute,
    "replan": replan,
}


def policy_of(text: str) -> Policy:
    """A built-in policy by name, or one of a file as FILE.py:name."""
    if ":" in text:
        from etude.world.serve.pools import function_of

        return function_of(text)
    if text not in POLICIES:
        raise UsageError(f"--recover: unknown policy `{text}`", hint=f"known: {', '.join(POLICIES)}, FILE.py:name")
    return POLICIES[text]


def asked(policy: Policy, view: View) -> str:
    try:
        answer = policy(view)
    except Exception as problem:
        raise UsageError(f"the recovery policy failed: {type(problem).__name__}: {problem}") from problem
    if answer not in ANSWERS:
        raise UsageError(f"the recovery policy answered {answer!r}", hint=f"known: {', '.join(ANSWERS)}")
    if view.lost and answer == STAY:
        raise UsageError("the recovery policy does nothing after a fault, so the run never continues", hint="restart")
    if view.lost and answer == WAIT and view.nodes_up >= view.nodes_needed:
        raise UsageError(
            "the recovery policy waits although all nodes are up, so the run never continues", hint="restart"
        )
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Times of transitions, and spare nodes. The times are assumptions: set your own."""

    detect_ns: float = figure("time", "time until a fault is detected, unless given by its kind", 60e9, zero=True)
    restart_ns: float = figure("time", "time to restart all processes, before the state is loaded", 300e9, zero=True)
    regroup_ns: float = figure("time", "time to form groups again while processes keep running", 30e9, zero=True)
    spares: str = text("number of spare nodes; default: always enough", like="4")
    reintegrate: bool = figure("flag", "repaired nodes rejoin at the next step", True)
    eject: bool = figure("flag", "slow nodes are left out once they are detected", False)

    def __post_init__(self) -> None:
        if self.spares and not self.spares.isdecimal():
            raise ClusterError(f"spares `{self.spares}` is not a number of nodes", hint="--spares 16")

    @property
    def spare_nodes(self) -> int | None:
        """Number of spare nodes; None: always enough."""
        return int(self.spares) if self.spares else None
