"""The fleet: jobs over days, from the costs of their steps. Faults, checkpoints, recovery, shared devices."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.fleet.checkpoint import parse_checkpoints as parse_checkpoints
    from etude.world.fleet.costs import Costs as Costs
    from etude.world.fleet.costs import predicted_costs as predicted_costs
    from etude.world.fleet.folder import is_fleet as is_fleet
    from etude.world.fleet.folder import read_fleet as read_fleet
    from etude.world.fleet.folder import write_fleet as write_fleet
    from etude.world.fleet.recovery import Recovery as Recovery
    from etude.world.fleet.training import simulate_fleet as simulate_fleet

__getattr__ = face(__name__)
