"""Runs a job on a system: `etude.simulate(job, system)`.

options, lower    the options; the job checked, matched, priced and folded
programs, operations, costs, groups, classes    the tables made from it
state, lanes, engine    the event loop, on any of the `networks`
run, result, deadlock   the verb, its result, and the explanation of a deadlock
together          several jobs on one fabric, as one job
"""

from typing import TYPE_CHECKING

from etude.faces import face, verb

if TYPE_CHECKING:
    from etude.simulate.options import JITTER as JITTER
    from etude.simulate.options import Options as Options
    from etude.simulate.options import Overlap as Overlap
    from etude.simulate.options import RemoteMemory as RemoteMemory
    from etude.simulate.result import LinkUse as LinkUse
    from etude.simulate.result import Simulated as Simulated
    from etude.simulate.run import simulate as simulate
    from etude.simulate.shares import Draw as Draw

__getattr__ = face(__name__)
verb(__name__)
