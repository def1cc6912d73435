"""Runs a job on a system: `etude.simulate(job, system)`.

options, lower    the options; the job checked, matched, priced and folded
programs, operations, costs, groups, classes    the tables made from it
state, lanes, engine    the event loop, on any of the `networks`
run, result, deadlock   the verb, its result, and the explanation of a deadlock
together          several jobs on one fabric, as one job
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.run.simulate.options import JITTER as JITTER
    from etude.run.simulate.options import Options as Options
    from etude.run.simulate.options import Overlap as Overlap
    from etude.run.simulate.options import RemoteMemory as RemoteMemory
    from etude.run.simulate.result import LinkUse as LinkUse
    from etude.run.simulate.result import Simulated as Simulated
    from etude.run.simulate.run import simulate as simulate
    from etude.run.simulate.shares import Draw as Draw

__getattr__ = face(__name__)
