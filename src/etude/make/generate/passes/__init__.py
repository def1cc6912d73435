"""Passes of given shapes, one after another: the basis of step costs."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.make.generate.passes.job import PassShape as PassShape
    from etude.make.generate.passes.job import RankBytes as RankBytes
    from etude.make.generate.passes.job import held_by as held_by
    from etude.make.generate.passes.job import pass_job as pass_job
    from etude.make.generate.passes.job import replicas_job as replicas_job
    from etude.make.generate.serving.batching import ModelPass as ModelPass
    from etude.make.generate.serving.batching import Span as Span

__getattr__ = face(__name__)
