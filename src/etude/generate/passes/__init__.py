"""Passes of given shapes, one after another: what step costs are made from."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.generate.passes.job import Held as Held
    from etude.generate.passes.job import PassShape as PassShape
    from etude.generate.passes.job import held_by as held_by
    from etude.generate.passes.job import pass_job as pass_job

__getattr__ = face(__name__)
