"""What shares one set of devices, as it is asked for, and its run."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.fleet.shared.request import KINDS as KINDS
    from etude.world.fleet.shared.request import BackboneRequest as BackboneRequest
    from etude.world.fleet.shared.request import FileRequest as FileRequest
    from etude.world.fleet.shared.request import RadioRequest as RadioRequest
    from etude.world.fleet.shared.request import ServicesRequest as ServicesRequest
    from etude.world.fleet.shared.request import SharedFleet as SharedFleet
    from etude.world.fleet.shared.request import ShareRequest as ShareRequest
    from etude.world.fleet.shared.request import kind_of as kind_of

__getattr__ = face(__name__)
