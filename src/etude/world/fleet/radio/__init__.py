"""Radio functions with hard deadlines and AI services on the same nodes: fast changes of shares, slow changes of
places."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.fleet.radio.results import radio_record as radio_record
    from etude.world.fleet.radio.results import radio_tables as radio_tables
    from etude.world.fleet.radio.run import share_radio as share_radio
    from etude.world.fleet.radio.spec import read_radio as read_radio

__getattr__ = face(__name__)
