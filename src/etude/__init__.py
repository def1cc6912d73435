"""Etude: everything around MLCommons Chakra execution traces.

`import etude` is light: each public name is loaded from its home when it is first asked for.
"""

import sys
from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.errors import EtudeError as EtudeError
    from etude.errors import TraceError as TraceError
    from etude.machine import open_system as open_system
    from etude.machine.system import System as System
    from etude.model.check.whole import check as check
    from etude.model.diff import diff as diff
    from etude.model.feeder.feed import feeder as feeder
    from etude.model.fold import expand as expand
    from etude.model.fold import fold as fold
    from etude.model.job import Job as Job
    from etude.model.run import Run as Run
    from etude.model.summary import summary as summary
    from etude.model.timing import Timing as Timing
    from etude.model.trace import Trace as Trace
    from etude.opening import open as open
    from etude.opening import open_run as open_run
    from etude.simulate import simulate as simulate
    from etude.store.et_stream import open_feeder as open_feeder
    from etude.store.sql import query as query
    from etude.study import study as study
    from etude.transform.edits import edit as edit

__version__ = "0.1.0"

__all__ = [
    "EtudeError",
    "Job",
    "Run",
    "System",
    "Timing",
    "Trace",
    "TraceError",
    "__version__",
    "check",
    "diff",
    "edit",
    "expand",
    "feeder",
    "fold",
    "open",
    "open_feeder",
    "open_run",
    "open_system",
    "query",
    "simulate",
    "study",
    "summary",
]

__getattr__ = face(__name__)

if "IPython" in sys.modules:  # in a notebook tables are shown with their units
    from etude.notebook import register

    register()


def __dir__() -> list[str]:
    return sorted(__all__)
