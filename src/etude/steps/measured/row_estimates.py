"""The range of a row's predicted figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etude.cost.estimates import Estimate, no_evidence
from etude.steps.estimates import step_case, step_estimate

if TYPE_CHECKING:
    from etude.steps.measured.rows import Case


def row_estimate(
    case: Case, value: float, *, figure: str = "step", unstated: int = 0, by_database: bool = False
) -> Estimate:
    """`unstated`: settings that the row leaves open."""
    found = step_case(case.model, case.plan, case.system, case.stack, figure=figure, unstated=unstated)
    if by_database and figure == "step":
        return no_evidence(value, "for a step by a database of operators", found)
    return step_estimate(value, found, case.stack)
