"""What a job would do on a system: `etude.simulate(job, system)`.

    options, lower    what is asked for; the job checked, matched, priced and folded
    programs, operations, costs, groups, classes    what is made of it
    state, lanes, engine    the one loop, on any of the `networks`
    run, result, deadlock   the verb, what it returns, and why nothing may come of it
    together          several jobs on one fabric, as one job

The folder and the verb have one name. Once something here is imported, `etude.simulate` is this module, so the module
can be called as well.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from etude.faces import face

if TYPE_CHECKING:
    from etude.simulate.options import JITTER as JITTER
    from etude.simulate.options import Options as Options
    from etude.simulate.options import Overlap as Overlap
    from etude.simulate.options import RemoteMemory as RemoteMemory
    from etude.simulate.result import LinkUse as LinkUse
    from etude.simulate.result import Simulated as Simulated
    from etude.simulate.run import simulate as simulate
    from etude.simulate.shares import Draw as Draw


class _Verb(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        from etude.simulate.run import simulate

        return simulate(*args, **options)


__getattr__ = face(__name__)
sys.modules[__name__].__class__ = _Verb
