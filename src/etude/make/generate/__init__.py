"""Generate: from a model and a plan to an exact job.

Model      the network: its shape, from the catalogue, YAML or a Hugging Face config.json (model/)
Block      a piece of it as ops with their backward (blocks/)
Plan       how it is distributed over ranks (plan.py)
Schedule   the order of work on a pipeline rank (schedules/)
Program    the nodes of one pipeline rank as columns, and the step they make (train/)
Serving    requests answered pass by pass (serving/)
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.make.generate import memory_table as memory_table
    from etude.make.generate.card import card_of as card_of
    from etude.make.generate.micro_benchmarks import MicroOptions as MicroOptions
    from etude.make.generate.micro_benchmarks import micro as micro
    from etude.make.generate.plan import Plan as Plan
    from etude.make.generate.totals import by_group as by_group
    from etude.make.generate.train.job import Generated as Generated
    from etude.make.generate.train.job import generate as generate

__getattr__ = face(__name__)
