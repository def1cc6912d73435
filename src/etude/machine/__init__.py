"""Machines: devices, levels of network, topologies and routes; the catalogue, and the single entry point to a
System."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.machine.open import device_names as device_names
    from etude.machine.open import open_device as open_device
    from etude.machine.open import open_system as open_system
    from etude.machine.open import system_names as system_names
    from etude.machine.system import Device as Device
    from etude.machine.system import System as System
    from etude.machine.topology import Topology as Topology

__getattr__ = face(__name__)
