"""What carries collectives and messages: `analytic`, `links`, `flow`, all behind the three verbs of `seam`."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.simulate.networks.operation import NetworkOptions as NetworkOptions
    from etude.simulate.networks.operation import Operation as Operation
    from etude.simulate.networks.standalone import OperationTimes as OperationTimes
    from etude.simulate.networks.standalone import run_operations as run_operations

__getattr__ = face(__name__)
