"""Data below a device's memory: transfer times, placement, and what streaming hides."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.cost.tiers.measured import offload_rows as offload_rows
    from etude.cost.tiers.residency import POLICIES as POLICIES
    from etude.cost.tiers.residency import Residency as Residency
    from etude.cost.tiers.residency import reside as reside
    from etude.cost.tiers.streaming import resident_needed as resident_needed
    from etude.cost.tiers.streaming import streamed_ns as streamed_ns
    from etude.cost.tiers.transfers import copy_ns as copy_ns
    from etude.cost.tiers.transfers import file_ns as file_ns

__getattr__ = face(__name__)
