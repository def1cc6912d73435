"""What ranks of a dry run wrote that no job can be made of."""

from __future__ import annotations

from etude.base.errors import UsageError
from etude.capture.dry.launch import DrySettings, refuse_problem
from etude.capture.dry.memory import PRODUCTS
from etude.capture.dry.recorded_rank import DryRank


def check_rank(rank: int, one: DryRank, told: DrySettings) -> None:
    """Refuses a rank that was stopped, and one that did nothing."""
    if one.problem is not None:
        refuse_problem(rank, one.problem, world=one.world, on_device=told.device is not None)
    hint = "does it train on a GPU alone? with --device h100 it finds one" if not told.device else ""
    if not any(one.columns.works):
        raise UsageError(f"rank {rank}: the program ended and no operator of PyTorch ran", hint=hint)
    if told.steps and not (one.steps or one.calls or _computes(one)):
        way = f"{hint}; --whole takes what it did" if hint else "--whole takes what it did"
        raise UsageError(f"rank {rank}: the program ended, and no model was called and no optimizer stepped", hint=way)


def _computes(rank: DryRank) -> bool:
    """Whether a rank multiplied matrices or communicated."""
    names = {rank.words[i] for i in set(rank.columns.name)}
    products = any(word in name for name in names for word in ("convolution", "attention")) or names & set(PRODUCTS)
    return bool(products) or any(call is not None for call in rank.columns.communication)


def check_exchanges(read: dict[int, DryRank], brief: set[int]) -> None:
    """Refuses numbers that a program decides by after ranks exchanged them, where ranks that were run had different
    ones: each took the others to have its own."""
    had = {rank: {(tuple(x.members), x.number): x.value for x in one.exchanges} for rank, one in read.items()}
    asked = [(rank, found) for rank, one in read.items() for found in one.exchanges if found.where]
    for rank, found in asked:
        for other in set(found.members) & set(read):
            ended = other in brief or read[other].problem is not None  # and may not have come that far
            value = had[other].get((tuple(found.members), found.number), found.value if ended else "unknown ones")
            if value != found.value:
                raise UsageError(
                    f"rank {rank} decides by numbers that ranks exchanged, and ranks have different ones, "
                    f"{found.value} on rank {rank} and {value} on rank {other}: `{found.line}`",
                    where=found.where,
                    hint=f"state what comes out: --answer {found.where}=1.0",
                )
