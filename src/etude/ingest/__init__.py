"""From recordings to Chakra traces."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.ingest import allocations as allocations
    from etude.ingest import card as card
    from etude.ingest import causal as causal
    from etude.ingest import official as official
    from etude.ingest import profiles as profiles
    from etude.ingest import reading as reading
    from etude.ingest import runs as runs
    from etude.ingest import text as text

__getattr__ = face(__name__)
