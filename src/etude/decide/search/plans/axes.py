"""Axes of a space of plans: any field of a plan, and `system`. Each has usual values, or needs them given."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import key_of
from etude.base.figures import parse as parse_yaml
from etude.base.grammar import LinePiece, line
from etude.machine.system import System
from etude.make.generate import Plan
from etude.make.generate.model import Family, Model
from etude.make.generate.schedules import parse
from etude.make.generate.train import sequence_of
from etude.steps.plans import powers

SYSTEM: Final = "system"
STAGES: Final = "stages"
PLACEMENT: Final = "placement"
FIELDS: Final = {key_of(f): f for f in fields(Plan)}
LONG: Final = 16_384
"""Sequence length from which context parallelism is tried."""
EVEN: Final = "even"
_LAST: Final = re.compile(r"last-([1-9])")


class Setting:
    """What usual values depend on."""

    def __init__(self, model: Model, system: System, gpus: int, base: Mapping[str, Any]) -> None:
        self.model, self.system, self.gpus = model, system, gpus
        self.node = min(system.levels[0].size, gpus)
        self.seq = int(base.get("seq") or sequence_of(model))
        self.splits = model.family not in (Family.DLRM, Family.CONVNET)


USUAL: Final[dict[str, Callable[[Setting], list[Any]]]] = {
    "tp": lambda s: powers(min(s.node, 8)) if s.splits else [1],
    "pp": lambda s: powers(min(max(s.model.layers, 1), s.gpus, 32)),
    "cp": lambda s: powers(min(s.gpus, 8)),
    "ep": lambda s: [e for e in powers(min(s.model.experts, s.gpus)) if s.model.experts % e == 0] or [1],
    "etp": lambda s: powers(min(s.node, 8)) if s.model.experts else [1],
    "zero": lambda s: [0, 1, 2, 3],
    "dp_shard": lambda s: [0, *([s.node] if s.gpus > s.node > 1 else [])],
    "micro_batch": lambda s: [1, 2, 4, 8],
    "schedule": lambda s: ["1f1b", "interleaved:2", "interleaved:4", "zb1p", "zbv"],
    "stages": lambda s: [EVEN, "last-1", "last-2"],
    "recompute": lambda s: ["none", "selective:norm,activation", "full"],
    "order": lambda s: ["tp-cp-dp-pp", "tp-cp-pp-dp"],
    "sp": lambda s: [True, False],
    "tp_chunks": lambda s: [1, 4],
    "prefetch": lambda s: [1, 2],
    "reshard": lambda s: [True, False],
    "cp_kind": lambda s: ["ring", "all_gather", "ulysses"],
}
"""Axis -> its values if none are given."""

NARROW: Final[dict[str, list[Any] | None]] = {
    "tp": None, "pp": None, "ep": None, "zero": [1, 3], "micro_batch": [1, 2, 4],
    "schedule": ["1f1b", "interleaved:2", "interleaved:4"], "recompute": ["none", "selective:norm,activation", "full"],
}  # fmt: skip
"""Axes of `etude plan`."""


def default_axes(s: Setting) -> list[str]:
    """Axes searched by default: all that change speed or memory much."""
    names = ["tp", "pp"]
    names += ["cp"] if s.seq >= LONG and s.splits else []
    names += ["ep"] if s.model.experts else []
    names += ["zero"]
    names += ["dp_shard"] if s.gpus > s.node > 1 else []
    names += ["tp_chunks"] if s.splits and s.node > 1 else []
    return [*names, "micro_batch", "schedule", "recompute"]


def read_axes(over: Mapping[str, Sequence[Any] | None], s: Setting, fixed: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Axis -> values, in the given order. `over`: the requested ones, None for the usual values; empty: the default
    axes, without those in `fixed`."""
    wanted = {name: values for name, values in over.items() if name != PLACEMENT} or {
        name: None for name in default_axes(s) if name not in fixed
    }
    found: dict[str, list[Any]] = {}
    for name, values in wanted.items():
        if name not in FIELDS and name != SYSTEM:
            known = ", ".join([*USUAL, "gpus", SYSTEM, PLACEMENT])
            hint = f"known: {known}, or any other field of a plan with its values"
            raise UsageError(f"unknown axis `{name}`", where="over", hint=hint)
        if name in fixed and name != SYSTEM:
            hint = f"leave out one of --over {name} and --{name.replace('_', '-')}"
            raise UsageError(f"`{name}` is searched, but it is also given", where="over", hint=hint)
        if values is None and name not in USUAL:
            raise UsageError(f"axis `{name}` has no usual values", where="over", hint=f"--over {name}=A|B")
        found[name] = list(values) if values is not None else USUAL[name](s)
        if not found[name]:
            raise UsageError(f"axis `{name}` has no values", where="over", hint=f"{name}=A|B")
    return found


def parse_over(text: str) -> dict[str, list[Any] | None]:
    """`tp=1|2|4,zero` -> {"tp": [1, 2, 4], "zero": None}. Text after a comma that is not an axis belongs to the last
    value: `recompute=none|selective:norm,activation`."""
    found: dict[str, list[Any] | None] = {}
    for part in _axes(line(text, "--over", "tp=1|2|4,zero")) if text.strip() else ():
        name, values = part.cut("=")
        key = name.text.replace("-", "_")
        if not key:
            raise name.wrong("the name of an axis is missing")
        if key in found:
            raise name.wrong(f"axis `{key}` appears twice")
        if values is not None and not values.text:
            raise values.wrong(f"axis `{key}` has no values")
        found[key] = (
            None if values is None else [parse_yaml(v, "--over") if v.strip() else "" for v in values.text.split("|")]
        )
    return found


def _axes(whole: LinePiece) -> list[LinePiece]:
    """The axes of a line, each with all of its values."""
    found: list[LinePiece] = []
    for part in whole.split(","):
        name, values = part.cut("=")
        is_axis = name.text.replace("-", "_") in (*FIELDS, SYSTEM, PLACEMENT)
        if found and "=" in found[-1].text and values is None and not is_axis:
            first, last = (one.column - whole.column for one in (found[-1], part))
            found[-1] = replace(whole.part(first, last + len(part.text)), inside="")
        else:
            found.append(part)
    return found


def layers_of_stages(value: Any, model: Model, pp: int, schedule: str) -> list[int]:
    """Layers of each stage: `even` none are named, `last-1` the last has one less than its part, for the head; the
    others share what is left, those behind the first have more."""
    if value == EVEN or value == "":
        return []
    if isinstance(value, list | tuple):
        return [int(v) for v in value]
    less = _LAST.fullmatch(str(value))
    if less is None:
        given = line(str(value), "stages", "even, last-1, or layers of each stage: 9,9,8,6")
        return [part.count(zero=True) for part in given.split(",")]
    stages = pp * max(parse(schedule)[1], 1)
    if stages == 1:
        return []
    last = max(model.layers // stages - int(less[1]), 1)
    each, over = divmod(model.layers - last, stages - 1)
    return [*(each + (over and n >= stages - 1 - over) for n in range(stages - 1)), last]
