"""ASTRA-sim's analytical backends, re-implemented bit for bit: `run` a job on a network and a system.

A Job is read as ASTRA-sim reads its files (ranks, columns), checked and laid out (prepare, phases, machine), and run by
compiled kernels (kernels/engine); what hangs or is odd is explained (diagnose).
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.run.astra.abort import AstraAbort as AstraAbort
    from etude.run.astra.config import AstraOptions as AstraOptions
    from etude.run.astra.config import read_groups as read_groups
    from etude.run.astra.config import read_network as read_network
    from etude.run.astra.config import read_remote_memory as read_remote_memory
    from etude.run.astra.config import read_system as read_system
    from etude.run.astra.simulation import AstraResult as AstraResult
    from etude.run.astra.simulation import run as run

__getattr__ = face(__name__)
