"""What carries collectives and messages: `analytic`, `links`, `flow`, all behind the three verbs of `seam`.

state       tables of operations, transfers, slots, links
sharing     compute and communication of one rank slow each other down
analytic    operations that last a known time
transfers   operations that are carried out over links: `links` or `flow` say how transfers share one
registry    makes the tables of operations on a topology
carrier     makes operations of collectives and messages
standalone  runs operations without a workload
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.run.simulate.networks.operation import NetworkOptions as NetworkOptions
    from etude.run.simulate.networks.operation import Operation as Operation
    from etude.run.simulate.networks.standalone import OperationTimes as OperationTimes
    from etude.run.simulate.networks.standalone import run_operations as run_operations

__getattr__ = face(__name__)
