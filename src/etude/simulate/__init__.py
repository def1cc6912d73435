"""What a job would do on a system: `etude.simulate(job, system)`.

options, lower    what is asked for; the job checked, matched, priced and folded
programs, operations, costs, groups, classes    what is made of it
state, lanes, engine    the one loop, on any of the `networks`
run, result, deadlock   the verb, what it returns, and why nothing may come of it
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
