"""InfraGraph files: systems of systems in six messages, expanded by arithmetic, completed by annotations."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.machine.infragraph.annotations import AnnotatedTopology as AnnotatedTopology
    from etude.machine.infragraph.files import read_cluster as read_cluster
    from etude.machine.infragraph.files import read_infragraph as read_infragraph
    from etude.machine.infragraph.graph import InfraGraph as InfraGraph

__getattr__ = face(__name__)
