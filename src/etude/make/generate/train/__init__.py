"""Training steps: fragments placed one after another, exchange of gradients and weights, memory."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.make.generate.train.done_again import with_memory as with_memory
    from etude.make.generate.train.job import model_flops as model_flops
    from etude.make.generate.train.job import plan_memory as plan_memory
    from etude.make.generate.train.job import sequence_of as sequence_of
    from etude.make.generate.train.layout import split as split
    from etude.make.generate.train.less_memory import with_less as with_less
    from etude.make.generate.train.work import job_of_ops as job_of_ops
    from etude.make.generate.train.work import least_step_ns as least_step_ns

__getattr__ = face(__name__)
