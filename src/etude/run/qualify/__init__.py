"""Is a node as fast as it should be? Micro jobs measure it, and its figures are compared with others and with earlier
ones.

node       a node's figures, and the file they are in
measure    the micro jobs, on PyTorch
ranking    nodes ranked; slow devices, links and hosts separately
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.run.qualify.measure import MeasureOptions as MeasureOptions
    from etude.run.qualify.measure import measure_node as measure_node
    from etude.run.qualify.node import NodeFigure as NodeFigure
    from etude.run.qualify.node import QualifiedNode as QualifiedNode
    from etude.run.qualify.node import read_node as read_node
    from etude.run.qualify.node import write_node as write_node
    from etude.run.qualify.ranking import Qualified as Qualified
    from etude.run.qualify.ranking import qualify as qualify

__getattr__ = face(__name__)
