"""Plans of a model on a cluster: any of their axes, simulated. `etude.decide.search.plans` has what they are."""

from collections.abc import Mapping
from typing import Any

from etude.decide.search.plans.axes import PLACEMENT
from etude.decide.search.plans.search import PlanSearch
from etude.decide.search.plans.space import over_of, read_plans
from etude.decide.search.request import DRAWING, PARALLEL, SearchRequest, SpaceFile


def space(given: SpaceFile, asked: SearchRequest) -> PlanSearch:
    asked.once("plans")
    return PlanSearch(read_plans(given))


def options(keys: Mapping[str, Any], method: str) -> frozenset[str]:
    is_drawn = method in DRAWING or PLACEMENT in over_of(keys.get("over"))
    return PARALLEL | {"seed"} if is_drawn else PARALLEL
