"""What a job would do on a system: `etude.simulate(job, system)`.

The folder and the verb have one name. Once something here is imported, `etude.simulate` is this module, so the module
can be called as well.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from etude.faces import face

if TYPE_CHECKING:
    from etude.simulate.options import Options as Options
    from etude.simulate.options import Overlap as Overlap
    from etude.simulate.options import RemoteMemory as RemoteMemory
    from etude.simulate.result import Simulated as Simulated
    from etude.simulate.run import simulate as simulate

__getattr__ = face(__name__)


class _Verb(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        from etude.simulate.run import simulate

        return simulate(*args, **options)


sys.modules[__name__].__class__ = _Verb
