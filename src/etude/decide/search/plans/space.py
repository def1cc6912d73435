"""A space of plans: a model, systems, what is fixed, axes, scores and limits.

search: plans
model: llama3-8b
system: dgx-h100
gpus: 16
plan: {global_batch: 16}               # what is fixed
over: {tp: [1, 2, 4], zero: usual}     # or [tp, zero], or "tp=1|2|4,zero"; nothing: all that changes much
score: [step, memory]                  # the first decides which is best
limits: {memory: 80GB}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.shapes import names_in
from etude.decide.search.plans.axes import PLACEMENT, SYSTEM, Setting, parse_over, read_axes
from etude.decide.search.plans.scores import read_limits, read_scores
from etude.decide.search.request import SpaceFile
from etude.machine import open_system
from etude.machine.regions import hourly_price
from etude.machine.system import System
from etude.make.generate.model import Model, open_model

KEYS: Final = names_in("""
    model system gpus plan over score limits stack network price tries
""")
ANALYTIC, FLOW = "analytic", "flow"
NETWORKS: Final = (ANALYTIC, "links", FLOW)

TOKENS: Final = 1 << 24
"""Default limit per step: about what the largest models are trained with."""


def usual_batch(gpus: int, seq: int) -> int:
    """Default samples per step: one for each GPU, as long as they are not too many tokens."""
    return min(gpus, max(1 << (max(TOKENS // max(seq, 1), 1).bit_length() - 1), 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSpace:
    """The search space. `axes` may include `system`."""

    model: str
    """Name, or file."""
    opened: Model
    system: str
    systems: Mapping[str, System]
    axes: Mapping[str, list[Any]]
    fixed: Mapping[str, Any]
    scores: tuple[str, ...] = ("step",)
    limits: Mapping[str, float] = field(default_factory=dict)
    stack: str = ""
    recipe: bool = True
    """The stack's recipe completes a plan, as in `etude predict`."""
    network: str = "analytic"
    prices: Mapping[str, float] = field(default_factory=dict)
    """Dollars per device and hour, by system."""
    tries: int = 0
    """Simulate this many plans with the lowest bounds, whatever the results; 0: as many as bounds leave."""
    placed: bool = False
    """Ranks of the best plans are placed, too."""

    @property
    def seal(self) -> str:
        """Text of what workers open by name: an answer is valid as long as this stays the same."""
        return repr((self.opened, sorted(self.systems.items(), key=lambda item: item[0])))

    def memory_limit(self, system: str) -> float:
        """Limit of a GPU: as given, otherwise the device's; 0: none."""
        return self.limits.get("memory", float(self.systems[system].memory_bytes))


def read_plans(given: SpaceFile) -> PlanSpace:
    """The space that a file describes."""
    given.only(*KEYS)
    keys = dict(given.keys)
    if not isinstance(keys.get("model"), str) or "system" not in keys or "gpus" not in keys:
        over = over_of(keys.get("over"))
        missing = [k for k in ("model", "system", "gpus") if k not in keys and k not in over]
        if missing:
            raise UsageError(
                f"`{missing[0]}` is needed", where=given.where, hint="model: llama3-8b; system: dgx-h100; gpus: 16"
            )
    return space_of(
        model=_named(given, keys.get("model")), system=_named(given, keys.get("system", "")),
        fixed={**_mapping(keys.get("plan"), "plan"), **({"gpus": keys["gpus"]} if "gpus" in keys else {})},
        over=over_of(keys.get("over")), score=_names(keys.get("score")), limits=_mapping(keys.get("limits"), "limits"),
        stack=str(keys.get("stack", "")), network=str(keys.get("network", "")),
        price=keys.get("price", {}), tries=int(keys.get("tries", 0)),
    )  # fmt: skip


def space_of(
    *, model: str, system: str, fixed: Mapping[str, Any], over: Mapping[str, list[Any] | None],
    score: Sequence[str] = (), limits: Mapping[str, Any] | None = None, stack: str = "", recipe: bool = True,
    network: str = "", price: Any = None, tries: int = 0,
) -> PlanSpace:  # fmt: skip
    """The space with its usual values filled in. A step has a sample for each GPU where no batch is given: all
    candidates train the same batch. Without a network closed forms are taken, or `flow` where ranks are placed."""
    network = network_of(network, over)
    names = [str(v) for v in over.get(SYSTEM) or ([system] if system else [])]
    if not names:
        raise UsageError("no system is given", hint="--system dgx-h100; `etude systems` lists them")
    systems, opened = {name: open_system(name) for name in names}, open_model(model)
    gpus = _gpus(fixed, over)
    for one in systems.values():
        one.check_linked(max(gpus))
    axes = read_axes(over, Setting(opened, systems[names[0]], max(gpus), fixed), fixed)
    kept = {**({} if "gpus" in axes else {"gpus": 1}), **fixed}
    if "global_batch" not in axes and not kept.get("global_batch"):
        seq = Setting(opened, systems[names[0]], max(gpus), fixed).seq
        kept["global_batch"] = usual_batch(max(gpus), seq)
    scores = read_scores(score)
    space = PlanSpace(
        model=model, opened=opened, system=names[0], systems=systems, axes=axes, fixed=kept,
        scores=tuple(scores), limits=read_limits(limits or {}), stack=stack, recipe=recipe, network=network,
        prices=_prices(price, systems), tries=tries, placed=PLACEMENT in over,
    )  # fmt: skip
    if "cost" in [*scores, *space.limits] and (unknown := [n for n in names if n not in space.prices]):
        hint = f"--price {unknown[0]}=2.5 (dollars per device and hour)"
        raise UsageError(f"the price of a device of `{unknown[0]}` is not known", where="score: cost", hint=hint)
    return space


def network_of(network: str, over: Mapping[str, Any]) -> str:
    if network not in ("", *NETWORKS):
        raise UsageError(f"network `{network}`", hint=f"known: {', '.join(NETWORKS)}")
    if PLACEMENT not in over:
        return network or ANALYTIC
    if over[PLACEMENT] is not None:
        raise UsageError("axis `placement` does not take values", where="over", hint="--over tp,pp,placement")
    if network == ANALYTIC:
        raise UsageError(
            f"network `{ANALYTIC}` cannot rank placements", where="over: placement", hint="--network flow or links"
        )
    return network or FLOW


def _gpus(fixed: Mapping[str, Any], over: Mapping[str, list[Any] | None]) -> list[int]:
    values = over.get("gpus") or [fixed.get("gpus", 1)]
    if not all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in values):
        raise UsageError(f"gpus: {values}", hint="--gpus 16, or --over gpus=8|16")
    return values


def _prices(given: Any, systems: Mapping[str, System]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, system in systems.items():
        own = hourly_price([(system.device, 1)])
        value = given.get(name) if isinstance(given, Mapping) else given
        if value is not None:
            if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
                raise UsageError(
                    f"`{value}` is not a valid price", where="price", hint="dollars per device and hour: 2.5"
                )
            found[name] = float(value)
        elif own is not None:
            found[name] = own
    if isinstance(given, Mapping) and (unknown := [n for n in given if n not in systems]):
        raise UsageError(f"`{unknown[0]}` is not a system of this search", where="price")
    return found


def over_of(given: Any) -> dict[str, list[Any] | None]:
    """Axes as a file has them."""
    if given is None:
        return {}
    if isinstance(given, str):
        return parse_over(given)
    if isinstance(given, list):
        return {str(name): None for name in given}
    if not isinstance(given, Mapping) or not all(isinstance(v, list) or v in (None, "usual") for v in given.values()):
        raise UsageError("axes are names, or names with lists of values", where="over", hint="over: {tp: [1, 2, 4]}")
    return {str(name): value if isinstance(value, list) else None for name, value in given.items()}


def _named(given: SpaceFile, text: Any) -> str:
    """A file in the folder of the space, or a name."""
    name = str(text or "")
    beside = given.folder / name
    return str(beside) if name and Path(name).suffix and beside.exists() else name


def _names(given: Any) -> list[str]:
    if given is None:
        return []
    return [str(given)] if not isinstance(given, list) else [str(v) for v in given]


def _mapping(given: Any, where: str) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UsageError("is a mapping", where=where)
    return {str(k): v for k, v in given.items()}
