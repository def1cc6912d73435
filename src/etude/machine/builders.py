"""Topologies and what builds them, under one name: `etude.extend.topology`."""

from etude.machine.fabrics import dragonfly as dragonfly
from etude.machine.fabrics import fat_tree as fat_tree
from etude.machine.fabrics import rail_clos as rail_clos
from etude.machine.fabrics import topology_of_system as topology_of_system
from etude.machine.topology import Topology as Topology
from etude.machine.topology import VertexKind as VertexKind
from etude.machine.topology import Wire as Wire
from etude.machine.topology import full as full
from etude.machine.topology import mesh as mesh
from etude.machine.topology import product as product
from etude.machine.topology import ring as ring
from etude.machine.topology import switch as switch
from etude.machine.topology import torus as torus
