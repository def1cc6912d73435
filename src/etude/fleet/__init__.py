"""The fleet: jobs over days, from the costs of their steps. Faults, checkpoints, recovery, shared devices."""

from typing import TYPE_CHECKING

from etude.faces import face, verb

if TYPE_CHECKING:
    from etude.fleet.checkpoint import parse_checkpoints as parse_checkpoints
    from etude.fleet.costs import Costs as Costs
    from etude.fleet.costs import predicted_costs as predicted_costs
    from etude.fleet.folder import is_fleet as is_fleet
    from etude.fleet.folder import read_fleet as read_fleet
    from etude.fleet.folder import write_fleet as write_fleet
    from etude.fleet.recovery import Recovery as Recovery
    from etude.fleet.training import simulate_fleet as simulate_fleet

__getattr__ = face(__name__)
verb(__name__)
