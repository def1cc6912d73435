"""The messages that the communication of a job consists of, for packet simulators: `flow_table(job, system)`; and their
times, read back: `flow_times(table, job, system)`."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.run.simulate.flows.table import Flows as Flows
    from etude.run.simulate.flows.table import flow_table as flow_table
    from etude.run.simulate.flows.times import flow_times as flow_times
    from etude.run.simulate.networks.given import FlowTimes as FlowTimes

__getattr__ = face(__name__)
