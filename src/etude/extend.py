"""What your programs and extensions use besides the verbs of `etude`: `from etude.extend import Kind`.

Each name is loaded when it is first asked for. With those of `etude` these names are what is promised; docs/api.md
lists both, and everything below other paths is private.
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.analyse.energy import Energy as Energy
    from etude.analyse.graphs import graph_replays as graph_replays
    from etude.analyse.patterns import patterns as patterns
    from etude.analyse.reasons import reasons as reasons
    from etude.analyse.traffic import traffic as traffic
    from etude.analyse.trend import trend as trend
    from etude.analyse.what_if import what_if as what_if
    from etude.base.cluster import spread as spread
    from etude.base.errors import TraceError as TraceError
    from etude.base.notebook import table as html_table
    from etude.capture.collect.torch import trace as trace
    from etude.capture.collect.torch import traced as traced
    from etude.capture.ingest.requests import measured_requests as measured_requests
    from etude.capture.opening import open_algorithm as open_algorithm
    from etude.cost.calibrate import calibrate as calibrate_device
    from etude.cost.collectives import collective_time_ns as collective_time_ns
    from etude.cost.collectives import p2p_time_ns as p2p_time_ns
    from etude.cost.collectives import schedule as collective_schedule
    from etude.decide.search.found import Found as Found
    from etude.decide.search.placements.best import best_placement as best_placement
    from etude.decide.study import Study as Study
    from etude.decide.study.run import Outcome as Outcome
    from etude.decide.study.run import evaluate as evaluate
    from etude.decide.study.space import Space as Space
    from etude.machine import builders as topology
    from etude.machine.infragraph import read_cluster as read_cluster
    from etude.machine.system import Device as Device
    from etude.make.generate.directives.step import Select as Select
    from etude.make.generate.maps import Domain as Domain
    from etude.make.generate.model import open_model as open_model
    from etude.make.generate.model.shape import Model as Model
    from etude.make.generate.schedules import schedule as pipeline_schedule
    from etude.make.generate.serving import Serving as Serving
    from etude.make.generate.serving import serve as serving_job
    from etude.make.generate.totals import by_group as by_group
    from etude.make.generate.train.job import Generated as Generated
    from etude.make.synth import learn as learn
    from etude.make.transform.device_times import with_device_times as with_device_times
    from etude.make.transform.edits import Edit as Edit
    from etude.model.card import Card as Card
    from etude.model.feeder.feed import feeder as feeder
    from etude.model.fold import expand as expand
    from etude.model.fold import fold as fold
    from etude.model.schema import Collective as Collective
    from etude.model.schema import Kind as Kind
    from etude.model.summary import summary as summary
    from etude.model.timing import Timing as Timing
    from etude.run import astra as astra
    from etude.run.simulate.faults import SlowRank as SlowRank
    from etude.run.simulate.faults import StopRanks as StopRanks
    from etude.run.simulate.faults import simulate_until as simulate_until
    from etude.run.simulate.flows import flow_table as flow_table
    from etude.run.simulate.flows import flow_times as flow_times
    from etude.run.simulate.networks import Operation as Operation
    from etude.run.simulate.networks import run_operations as run_operations
    from etude.run.simulate.options import LinkChange as LinkChange
    from etude.run.simulate.options import Options as Options
    from etude.run.simulate.result import Simulated as Simulated
    from etude.run.simulate.run import start_engine as start_engine
    from etude.run.simulate.together import simulate_jobs as simulate_jobs
    from etude.steps import predict_serving as predict_serving
    from etude.steps.step import Prediction as Prediction
    from etude.store.et_stream import open_feeder as open_feeder
    from etude.surface.api.making import federate as federate
    from etude.surface.api.making import micro as micro
    from etude.surface.api.workflows import Sessions as Sessions
    from etude.surface.api.workflows import place_workflows as place_workflows
    from etude.surface.api.workflows import serve_workflow as serve_workflow
    from etude.surface.api.writing import synthesise as synthesise
    from etude.tell.archive import Lake as Lake
    from etude.world.fleet.federated.results import Federated as Federated
    from etude.world.fleet.shared import SharedFleet as SharedFleet
    from etude.world.fleet.training import Fleet as Fleet
    from etude.world.serve import Engine as Engine
    from etude.world.serve.serving import Served as Served

__all__ = [
    "Card",
    "Collective",
    "Device",
    "Domain",
    "Edit",
    "Energy",
    "Engine",
    "Federated",
    "Fleet",
    "Found",
    "Generated",
    "Kind",
    "Lake",
    "LinkChange",
    "Model",
    "Operation",
    "Options",
    "Outcome",
    "Prediction",
    "Select",
    "Served",
    "Serving",
    "Sessions",
    "SharedFleet",
    "Simulated",
    "SlowRank",
    "Space",
    "StopRanks",
    "Study",
    "Timing",
    "TraceError",
    "astra",
    "best_placement",
    "by_group",
    "calibrate_device",
    "collective_schedule",
    "collective_time_ns",
    "evaluate",
    "expand",
    "federate",
    "feeder",
    "flow_table",
    "flow_times",
    "fold",
    "graph_replays",
    "html_table",
    "learn",
    "measured_requests",
    "micro",
    "open_algorithm",
    "open_feeder",
    "open_model",
    "p2p_time_ns",
    "patterns",
    "pipeline_schedule",
    "place_workflows",
    "predict_serving",
    "read_cluster",
    "reasons",
    "run_operations",
    "serve_workflow",
    "serving_job",
    "simulate_jobs",
    "simulate_until",
    "spread",
    "start_engine",
    "summary",
    "synthesise",
    "topology",
    "trace",
    "traced",
    "traffic",
    "trend",
    "what_if",
    "with_device_times",
]

__getattr__ = face(__name__, door="etude.surface.api.taken:opening_door")


def __dir__() -> list[str]:
    return sorted(__all__)
