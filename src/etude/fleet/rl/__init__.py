"""Post-training by reinforcement learning: rollouts, environments and training as stages on the devices of a pool."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.fleet.rl.beside_jobs import mixed as mixed
    from etude.fleet.rl.lend import beside as beside
    from etude.fleet.rl.lend import read_borrow as read_borrow
    from etude.fleet.rl.results import rl_record as rl_record
    from etude.fleet.rl.results import rl_tables as rl_tables
    from etude.fleet.rl.run import run_rl as run_rl
    from etude.fleet.rl.spec import Spec as Spec
    from etude.fleet.rl.spec import read_rl as read_rl

__getattr__ = face(__name__)
