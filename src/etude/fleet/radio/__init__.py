"""Radio functions with hard deadlines and AI services on the same nodes: fast changes of shares, slow changes of
places."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.fleet.radio.results import radio_record as radio_record
    from etude.fleet.radio.results import radio_tables as radio_tables
    from etude.fleet.radio.run import share_radio as share_radio
    from etude.fleet.radio.spec import read_radio as read_radio

__getattr__ = face(__name__)
