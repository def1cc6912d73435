"""The nodes of a job one after the other, each once its dependencies are completed."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.model.feeder.feed import feeder as feeder

__getattr__ = face(__name__)
