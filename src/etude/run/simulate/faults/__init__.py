"""Faults in the middle of a run: `simulate_until(job, system, [(at_ns, StopRanks((3,)))])`."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.run.simulate.events import SlowRank as SlowRank
    from etude.run.simulate.events import StopRanks as StopRanks
    from etude.run.simulate.faults.until import Interrupted as Interrupted
    from etude.run.simulate.faults.until import simulate_until as simulate_until

__getattr__ = face(__name__)
