"""Chakra's official linker and converter with identical results: their rules on our columns."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.capture.ingest.official.files import converted as converted
    from etude.capture.ingest.official.json_out import linked_json as linked_json
    from etude.capture.ingest.official.order import simulated_order as simulated_order
    from etude.capture.ingest.official.trace import collective_of as collective_of
    from etude.capture.ingest.official.trace import convert as convert

__getattr__ = face(__name__)
