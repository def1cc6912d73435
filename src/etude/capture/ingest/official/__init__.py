"""Chakra's official linker and converter with identical results: their rules on our columns."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.capture.ingest.official.commands import ConvertPyTorch as ConvertPyTorch
    from etude.capture.ingest.official.commands import ConvertText as ConvertText
    from etude.capture.ingest.official.commands import TraceLink as TraceLink
    from etude.capture.ingest.official.files import LinkFiles as LinkFiles
    from etude.capture.ingest.official.files import PyTorchFiles as PyTorchFiles
    from etude.capture.ingest.official.files import TextFiles as TextFiles
    from etude.capture.ingest.official.trace import collective_of as collective_of
    from etude.capture.ingest.official.trace import convert as convert

__getattr__ = face(__name__)
