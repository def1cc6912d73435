"""Axes of a scenario: every point is a world, its scores are read from what `etude world run --json` prints.

search: world
scenario: monday.yaml
axes: {workloads.chat.replicas: [2, 4, 8], policies.place: [pack, spread]}   # keys of the scenario, by their way there
when: replicas < 8 or place == 'pack'                                        # an axis is called by its last word
score: {cost: account.cost.total, wait: workloads.chat.ttft_s.p99}
limits: {slow: wait <= 1}
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import read_mapping
from etude.decide.search.request import SearchRequest, SpaceFile
from etude.decide.search.study_space import StudySpace, study_options
from etude.decide.study import evaluate
from etude.decide.study.space import Space as Points

if TYPE_CHECKING:
    import pyarrow as pa


class WorldSpace(StudySpace):
    what = "scenario"
    hint = "scenario: monday.yaml; axes: {machine.nodes: [2, 4]}; score: {cost: account.cost.total}"

    def axis_names(self, axes: Mapping[str, Any]) -> Mapping[str, Any]:
        self.ways = {str(way).rpartition(".")[2]: str(way) for way in axes}
        if len(self.ways) < len(axes):
            raise UsageError("two axes have the same last word", where=f"{self.given.where}: axes")
        return {name: axes[way] for name, way in self.ways.items()}

    def evaluate(self, points: Points, how: Mapping[str, Any]) -> pa.Table:
        path = self.given.path(str(self.given.keys["scenario"]))
        shared = {"scenario": read_mapping(path), "where": str(path), "ways": self.ways}
        return evaluate(points, world_record, self.metrics, shared=shared, **how)


def world_record(scenario: Mapping[str, Any], where: str, ways: Mapping[str, str], **at: Any) -> dict[str, Any]:
    """What a scenario comes to with these values on its axes."""
    from etude.world.asked.run import run_mapping

    given = deepcopy(dict(scenario))
    for name, value in at.items():
        *above, last = ways[name].split(".")
        inside = given
        for key in above:
            inside = inside.setdefault(key, {})
            if not isinstance(inside, dict):
                raise UsageError(f"`{key}` of `{ways[name]}` has no keys", where=where)
        inside[last] = value
    return run_mapping(given, where).record


def space(given: SpaceFile, asked: SearchRequest) -> WorldSpace:
    return WorldSpace(given, asked)


def options(keys: Mapping[str, Any], method: str) -> frozenset[str]:
    return study_options(method)
