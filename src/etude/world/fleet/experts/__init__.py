"""A wide group of expert-parallel ranks that serves: ranks leave it and join it again."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.fleet.experts.prices import ExpertPrices as ExpertPrices
    from etude.world.fleet.experts.request import ExpertsRequest as ExpertsRequest
    from etude.world.fleet.experts.request import experts_inputs as experts_inputs
    from etude.world.fleet.experts.request import run_experts as run_experts
    from etude.world.fleet.experts.run import group_tables as group_tables
    from etude.world.fleet.experts.run import serve_group as serve_group
    from etude.world.fleet.experts.spec import ExpertGroup as ExpertGroup
    from etude.world.fleet.experts.spec import parse_failures as parse_failures

__getattr__ = face(__name__)
