"""Post-training by reinforcement learning: rollouts, environments and training as stages on the devices of a pool."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.fleet.rl.beside_jobs import mixed as mixed
    from etude.world.fleet.rl.lend import beside as beside
    from etude.world.fleet.rl.lend import read_borrow as read_borrow
    from etude.world.fleet.rl.results import rl_record as rl_record
    from etude.world.fleet.rl.results import rl_tables as rl_tables
    from etude.world.fleet.rl.run import run_rl as run_rl
    from etude.world.fleet.rl.spec import RlSpec as RlSpec
    from etude.world.fleet.rl.spec import read_rl as read_rl

__getattr__ = face(__name__)
