"""Policies: one function in one file, named after it. A folder for each kind; yours as `FILE.py:name`.

place/pack.py      def pack(free: Sequence[int], devices: int) -> int
share/lend.py      def lend(wanted: WantedDevices, lenders: Sequence[NodeLender]) -> dict[str, int]
power/cap_training_first.py   def cap_training_first(view: PowerView) -> float
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeAlias

from etude.base.errors import UsageError

PlacePolicy: TypeAlias = Callable[[Sequence[int], int], int]
"""Free devices of the nodes that have enough, and the devices that are needed -> which of these nodes."""


class WantedDevices(NamedTuple):
    """A workload that wants devices where none are free."""

    name: str
    devices: int
    now_s: float


class NodeLender(NamedTuple):
    """A workload that may give nodes up."""

    name: str
    nodes: int
    """Nodes that it has."""
    needed: int
    """Fewest nodes that it can run on."""
    lends_to: str
    """Name of the only workload that it lends to; empty: any."""


SharePolicy: TypeAlias = Callable[[WantedDevices, Sequence[NodeLender], int], dict[str, int]]
"""What is wanted, who may lend, devices of a node -> nodes that each lender gives up."""


class PowerView(NamedTuple):
    """Power of the machine, in watts."""

    cap_w: float
    base_w: float
    """All devices at idle."""
    serving_w: float
    """Above idle: everything but training, over the last interval."""
    training_w: float
    """Above idle: training at full speed."""


PowerPolicy: TypeAlias = Callable[[PowerView], float]
"""Power -> speed of training, from 0 to 1."""


def known(kind: str) -> list[str]:
    """Names of the built-in policies of a kind."""
    found = files("etude.world.policies").joinpath(kind).iterdir()
    names = sorted(path.name.removesuffix(".py") for path in found if path.name.endswith(".py"))
    return [name.replace("_", "-") for name in names if not name.startswith("_")]


def policy(kind: str, text: str) -> Any:
    """The policy of a kind: a built-in by name, or a function as FILE.py:name. Raises UsageError."""
    if ":" in text:
        from etude.world.serve.pools import function_of

        return function_of(text)
    name = text.replace("-", "_")
    home = f"etude.world.policies.{kind}.{name}"
    if not name.isidentifier() or name.startswith("_") or find_spec(home) is None:
        hint = f"known: {', '.join(known(kind))}, FILE.py:name"
        raise UsageError(f"policies: {kind}: unknown policy `{text}`", hint=hint)
    return getattr(import_module(home), name)


# -- asking a policy ---------------------------------------------------------------------------------------------------


def _asked(kind: str, function: Callable[..., Any], *given: Any) -> Any:
    try:
        return function(*given)
    except Exception as problem:
        where = f"policies: {kind}: {getattr(function, '__name__', 'policy')}"
        raise UsageError(f"raised {type(problem).__name__}: {problem}", where=where) from problem


def _wrong(kind: str, function: Any, found: Any, hint: str) -> UsageError:
    return UsageError(f"returned {found!r}", where=f"policies: {kind}: {getattr(function, '__name__', '')}", hint=hint)


def placed(function: PlacePolicy, free: Sequence[int], devices: int) -> int:
    found = _asked("place", function, free, devices)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < len(free):
        raise _wrong("place", function, found, f"0 to {len(free) - 1}")
    return found


def lent(function: SharePolicy, wanted: WantedDevices, lenders: Sequence[NodeLender], node: int) -> dict[str, int]:
    """Nodes that each lender gives up."""
    found = _asked("share", function, wanted, lenders, node)
    most = {one.name: one.nodes - one.needed for one in lenders}
    if not isinstance(found, dict) or any(
        name not in most or not isinstance(count, int) or not 0 <= count <= max(most[name], 0)
        for name, count in found.items()
    ):
        raise _wrong("share", function, found, "nodes by name of a lender: {'pretrain': 1}")
    return {name: count for name, count in found.items() if count}


def speed_of(function: PowerPolicy, view: PowerView) -> float:
    """Speed of training, from 0 to 1."""
    found = _asked("power", function, view)
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found <= 1:
        raise _wrong("power", function, found, "a speed from 0 to 1")
    return float(found)
