"""What a job would do on a system: `etude.simulate(job, system)`.

The folder and the verb have one name. Once something here is imported, `etude.simulate` is this module, so the module
can be called as well.
"""

import sys
from types import ModuleType
from typing import Any


class _Verb(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        from etude.simulate.run import simulate

        return simulate(*args, **options)


sys.modules[__name__].__class__ = _Verb
