"""From recordings to Chakra traces."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.capture.ingest import allocations as allocations
    from etude.capture.ingest import card as card
    from etude.capture.ingest import causal as causal
    from etude.capture.ingest import official as official
    from etude.capture.ingest import profiles as profiles
    from etude.capture.ingest import reading as reading
    from etude.capture.ingest import runs as runs
    from etude.capture.ingest import text as text

__getattr__ = face(__name__)
