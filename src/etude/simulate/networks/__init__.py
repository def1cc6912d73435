"""What carries collectives and messages: `analytic`, `links`, `flow`, all behind the three verbs of `seam`."""

from etude.simulate.networks.operation import NetworkOptions, Operation
from etude.simulate.networks.standalone import OperationTimes, run_operations

__all__ = ["NetworkOptions", "Operation", "OperationTimes", "run_operations"]
