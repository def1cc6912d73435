"""A serving group of experts as it is asked for: `etude fleet experts`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part
from etude.base.parameters import given_in, is_given, only_with, spelled, whole
from etude.make.generate import Plan
from etude.world.fleet.costs import RESTART, SHRINK
from etude.world.fleet.days.request import MODEL_HELP, PLAN, RECOVERY, SYSTEM_HELP, keys_of_file
from etude.world.fleet.experts.run import POLICIES, serve_group
from etude.world.fleet.experts.spec import ExpertGroup, parse_failures
from etude.world.fleet.recovery import Recovery

if TYPE_CHECKING:
    from etude.machine import System
    from etude.make.generate.model import Model

AXES: Final = ("gpus", "ep", "precision")
HINT: Final = "etude fleet experts deepseek-v3 --ep 32 --system dgx-h100 --fail rank7@60s"
AFTER_A_FAILURE: Final = ("recover", "detect", "restart", "regroup", "reintegrate", "replace", "host_copies", "storage")


@dataclass(frozen=True, kw_only=True)
class ExpertsRequest:
    """A wide group of expert-parallel ranks that serves, of which some leave and join again."""

    model: Any = argument("noun", MODEL_HELP, like="mixtral-8x7b")
    system: Any = figure("noun", SYSTEM_HELP, names=("-s",), like="dgx-a100", panel="Machine")
    memory_check: bool = figure("flag", "refuse plans that do not fit the memory of the device", True, panel="Machine")
    plan: str | None = figure(
        "path", "YAML file with gpus, ep and precision; flags override it", None, like="experts.yaml", panel=PLAN
    )
    axes: Plan = part(Plan, PLAN, only=AXES)
    group: ExpertGroup = part(ExpertGroup, "The group")
    recover: str = figure(
        "text", "shrink (the others continue) or restart", RESTART, like=SHRINK, needs="fail", panel=RECOVERY
    )
    recovery: Recovery = part(Recovery, RECOVERY, but=("spares", "eject"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsInputs:
    model: Model
    system: System
    ranks: int
    said: tuple[int, int]
    """`gpus` and `ep` as they were given, 0 where not: they must agree."""
    precision: str
    group: ExpertGroup
    recover: str
    recovery: Recovery
    check: bool


def experts_inputs(asked: ExpertsRequest) -> ExpertsInputs:
    from etude.machine import open_system
    from etude.make.generate.model import open_model

    model, system, plan = asked.model, asked.system, asked.plan
    axes = given_in(asked.axes)
    keys = {**keys_of_file(asked, axes), **axes}
    if other := [name for name in keys if name not in AXES and keys[name] != 1]:
        problem = f"`{other[0]}` does not apply: every rank holds whole layers and its share of the experts"
        raise UsageError(problem, where=str(plan), hint=HINT)
    network = open_model(model) if isinstance(model, str) else model
    if not network.experts:
        raise UsageError(f"`{network.name}` has no experts", hint=HINT)
    ranks = int(keys.get("ep") or keys.get("gpus") or 0)
    if not ranks or keys.get("gpus", ranks) != ranks:
        raise UsageError(
            f"experts over --ep {keys.get('ep', 'none')} of --gpus {keys.get('gpus', 'none')} ranks", hint=HINT
        )
    recover, recovery, group = _recovery(asked)
    machine = open_system(system) if isinstance(system, str) else system
    parse_failures(group.fail, ranks=ranks, node=min(machine.levels[0].size, ranks))
    return ExpertsInputs(
        model=network, system=machine, ranks=ranks,
        said=(int(keys.get("gpus", 0)), int(keys.get("ep", 0))), precision=str(keys.get("precision") or "bf16"),
        group=group,
        recover=recover, recovery=recovery, check=asked.memory_check,
    )  # fmt: skip


def _recovery(asked: ExpertsRequest) -> tuple[str, Recovery, ExpertGroup]:
    """What follows a failure is read only where there is one, and by the policy that comes to it."""
    if not asked.group.fail:
        only_with(asked, "fail", *AFTER_A_FAILURE)
        return RESTART, Recovery(), whole(asked.group)
    recover = asked.recover
    if recover not in POLICIES:
        raise UsageError(
            f"{spelled(asked, 'recover')}: unknown policy `{recover}` for a group", hint=f"known: {', '.join(POLICIES)}"
        )
    unread = dict.fromkeys(("regroup", "reintegrate", "replace"), f"recovers by `{RESTART}`")
    if recover == SHRINK:
        back = asked.recovery.reintegrate
        unread = (
            {}
            if back
            else dict.fromkeys(
                ("restart", "replace"), f"takes no rank in again: without {spelled(asked, 'reintegrate')}"
            )
        )
        if back and asked.group.replace_ns:
            unread["restart"] = f"has {spelled(asked, 'replace')}"
    for name, why in unread.items():
        if is_given(asked, name):
            raise UsageError(f"{spelled(asked, name)} is not read by a group that {why}", hint="leave it out")
    return recover, whole(asked.recovery, unread), whole(asked.group, unread)


def run_experts(given: ExpertsInputs) -> dict[str, Any]:
    """The record."""
    from etude.world.fleet.experts.prices import ExpertPrices

    group = given.group
    prices = ExpertPrices(given.model, given.system, group.sequences, group.context, given.precision, given.check)
    return serve_group(prices, group, ranks=given.ranks, recover=given.recover, recovery=given.recovery)
