"""Models that do not fit a device."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.steps.placing.by_room import parts_of as parts_of
    from etude.steps.placing.by_room import tokens_by_room as tokens_by_room

__getattr__ = face(__name__)
