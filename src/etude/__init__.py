"""Etude: everything around MLCommons Chakra execution traces.

`import etude` is light: each public name is loaded from its home when it is first asked for. These names, and those of
`etude.extend`, are what is promised; docs/api.md lists them. Everything else is private.
"""

import sys
from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude import extend as extend
    from etude.analyse.breakdown import breakdown as breakdown
    from etude.analyse.collectives import collectives as collectives
    from etude.analyse.compare import compare as compare
    from etude.analyse.critical_path import critical_path as critical_path
    from etude.analyse.energy import energy as energy
    from etude.analyse.idle import idle as idle
    from etude.analyse.memory import memory as memory
    from etude.analyse.metrics import metrics as metrics
    from etude.analyse.operators import kernels as kernels
    from etude.analyse.operators import operators as operators
    from etude.analyse.roofline import roofline as roofline
    from etude.analyse.steps import steps as steps
    from etude.analyse.stragglers import stragglers as stragglers
    from etude.base.errors import EtudeError as EtudeError
    from etude.capture.opening import open as open
    from etude.capture.opening import open_run as open_run
    from etude.decide.search import search as search
    from etude.decide.study import study as study
    from etude.machine import open_system as open_system
    from etude.machine.system import System as System
    from etude.make.generate import Plan as Plan
    from etude.make.transform.edits import edit as edit
    from etude.model.check.whole import check as check
    from etude.model.diff import diff as diff
    from etude.model.job import Job as Job
    from etude.model.run import Run as Run
    from etude.model.trace import Trace as Trace
    from etude.run.simulate import simulate as simulate
    from etude.steps.asked.converting import convert as convert
    from etude.steps.asked.timeline import timeline as timeline
    from etude.store.sql import query as query
    from etude.surface.api.fleets import fleet as fleet
    from etude.surface.api.linking import link as link
    from etude.surface.api.making import generate as generate
    from etude.surface.api.making import plan as plan
    from etude.surface.api.making import predict as predict
    from etude.surface.api.serving import serve as serve
    from etude.surface.api.writing import anonymise as anonymise
    from etude.surface.api.writing import collect as collect
    from etude.surface.api.writing import replay as replay
    from etude.tell.report.asked.pages import report as report

__version__ = "0.1.0"

__all__ = [
    "EtudeError",
    "Job",
    "Plan",
    "Run",
    "System",
    "Trace",
    "__version__",
    "anonymise",
    "breakdown",
    "check",
    "collect",
    "collectives",
    "compare",
    "convert",
    "critical_path",
    "diff",
    "edit",
    "energy",
    "extend",
    "fleet",
    "generate",
    "idle",
    "kernels",
    "link",
    "memory",
    "metrics",
    "open",
    "open_run",
    "open_system",
    "operators",
    "plan",
    "predict",
    "query",
    "replay",
    "report",
    "roofline",
    "search",
    "serve",
    "simulate",
    "steps",
    "stragglers",
    "study",
    "timeline",
]

__getattr__ = face(__name__, door="etude.surface.api.taken:opening_door")

if "IPython" in sys.modules:  # in a notebook tables are shown with their units
    from etude.base.notebook import register

    register()


def __dir__() -> list[str]:
    return sorted(__all__)
