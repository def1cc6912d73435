"""Is a node as fast as it should be? Micro jobs measure it, and its figures are compared with others and with earlier
ones.

node       a node's figures, and the file they lie in
measure    the micro jobs, on PyTorch
ranking    nodes ranked; slow devices, links and hosts separately
"""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.qualify.measure import MeasureOptions as MeasureOptions
    from etude.qualify.measure import measure_node as measure_node
    from etude.qualify.node import Figure as Figure
    from etude.qualify.node import Node as Node
    from etude.qualify.node import read_node as read_node
    from etude.qualify.node import write_node as write_node
    from etude.qualify.ranking import Qualified as Qualified
    from etude.qualify.ranking import qualify as qualify

__getattr__ = face(__name__)
