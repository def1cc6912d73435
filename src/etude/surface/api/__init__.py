"""Verbs that put several rooms together: what `etude.NAME` calls where one room alone does not do it.

clusters    fleet: what shares the devices of a file
fleets      fleet: days of a job on a cluster
linking     link: the causal graph of a recording
making      generate, predict, plan, federate: from a model's name and a plan
serving     serve: streams of requests on replicas
taken       what a verb takes for a run, a job, a system, a device
workflows   serve_workflow, place_workflows: sessions of model calls and tools
writing     anonymise, collect, synthesise, replay: of a job, from one
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.surface.api import fleets as fleets
    from etude.surface.api import linking as linking
    from etude.surface.api import making as making
    from etude.surface.api import serving as serving
    from etude.surface.api import workflows as workflows
    from etude.surface.api import writing as writing

__getattr__ = face(__name__)
