"""Ownership maps: items with work and bytes that ranks own, and the transfers that follow from what each rank reads."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.generate.maps.domain import Domain as Domain
    from etude.generate.maps.items import Items as Items
    from etude.generate.maps.items import transfers as transfers
    from etude.generate.maps.packing import pack as pack

__getattr__ = face(__name__)
