"""Ownership maps: items with work and bytes that ranks own, and the transfers that follow from what each rank reads."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.make.generate.maps.domain import Domain as Domain
    from etude.make.generate.maps.items import Items as Items
    from etude.make.generate.maps.items import transfers as transfers
    from etude.make.generate.maps.packing import pack as pack

__getattr__ = face(__name__)
