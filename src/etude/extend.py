"""What programs and extensions of your own take beside the verbs of `etude`: `from etude.extend import Kind`.

Each name is loaded when it is first asked for. With those of `etude` these names are what is promised; docs/api.md
lists both, and everything below other paths is private.
"""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude import astra as astra
    from etude.analyse.energy import Energy as Energy
    from etude.analyse.graphs import graph_replays as graph_replays
    from etude.analyse.patterns import patterns as patterns
    from etude.analyse.reasons import reasons as reasons
    from etude.analyse.traffic import traffic as traffic
    from etude.analyse.trend import trend as trend
    from etude.archive import Lake as Lake
    from etude.archive import entry_of as entry_of
    from etude.collect.torch import trace as trace
    from etude.collect.torch import traced as traced
    from etude.cost.calibrate import calibrate as calibrate_device
    from etude.cost.collectives import collective_time_ns as collective_time_ns
    from etude.cost.collectives import p2p_time_ns as p2p_time_ns
    from etude.cost.collectives import schedule as collective_schedule
    from etude.fleet.federated.results import Federated as Federated
    from etude.fleet.training import Fleet as Fleet
    from etude.generate.directives.step import Select as Select
    from etude.generate.maps import Domain as Domain
    from etude.generate.model.shape import Model as Model
    from etude.generate.schedules import in_flight as in_flight
    from etude.generate.schedules import schedule as pipeline_schedule
    from etude.generate.schedules import times as pipeline_times
    from etude.generate.serving import Serving as Serving
    from etude.generate.serving import serve as serving_job
    from etude.generate.totals import by_group as by_group
    from etude.generate.train.job import Generated as Generated
    from etude.ingest.requests import measured_requests as measured_requests
    from etude.machine import topology as topology
    from etude.machine.infragraph import read_cluster as read_cluster
    from etude.machine.system import Device as Device
    from etude.model.card import Card as Card
    from etude.model.schema import Collective as Collective
    from etude.model.schema import Kind as Kind
    from etude.notebook import table as html_table
    from etude.opening import open_algorithm as open_algorithm
    from etude.predict import predict_serving as predict_serving
    from etude.predict.step import Prediction as Prediction
    from etude.search.found import Found as Found
    from etude.search.placement_best import best_placement as best_placement
    from etude.serve import Engine as Engine
    from etude.serve.serving import Served as Served
    from etude.simulate.faults import SlowRank as SlowRank
    from etude.simulate.faults import StopRanks as StopRanks
    from etude.simulate.faults import simulate_until as simulate_until
    from etude.simulate.flows import flow_table as flow_table
    from etude.simulate.lower import lower as lower
    from etude.simulate.networks import Operation as Operation
    from etude.simulate.networks import run_operations as run_operations
    from etude.simulate.options import LinkChange as LinkChange
    from etude.simulate.options import Options as Options
    from etude.simulate.result import Simulated as Simulated
    from etude.simulate.run import start as start
    from etude.simulate.together import simulate_jobs as simulate_jobs
    from etude.study.on_ray import spread as spread
    from etude.study.run import Outcome as Outcome
    from etude.study.run import evaluate as evaluate
    from etude.study.space import Space as Space
    from etude.transform.device_times import with_device_times as with_device_times
    from etude.transform.edits import Edit as Edit

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
    "Simulated",
    "SlowRank",
    "Space",
    "StopRanks",
    "astra",
    "best_placement",
    "by_group",
    "calibrate_device",
    "collective_schedule",
    "collective_time_ns",
    "entry_of",
    "evaluate",
    "flow_table",
    "graph_replays",
    "html_table",
    "in_flight",
    "lower",
    "measured_requests",
    "open_algorithm",
    "p2p_time_ns",
    "patterns",
    "pipeline_schedule",
    "pipeline_times",
    "predict_serving",
    "read_cluster",
    "reasons",
    "run_operations",
    "serving_job",
    "simulate_jobs",
    "simulate_until",
    "spread",
    "start",
    "topology",
    "trace",
    "traced",
    "traffic",
    "trend",
    "with_device_times",
]

__getattr__ = face(__name__)


def __dir__() -> list[str]:
    return sorted(__all__)
