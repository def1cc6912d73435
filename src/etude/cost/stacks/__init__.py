"""Software stacks as data: the efficiency of each on a generation of GPUs, and its recipes."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.cost.stacks.open import generation_of as generation_of
    from etude.cost.stacks.open import open_stack as open_stack
    from etude.cost.stacks.open import stack_for as stack_for
    from etude.cost.stacks.open import stack_names as stack_names
    from etude.cost.stacks.stack import Band as Band
    from etude.cost.stacks.stack import Efficiency as Efficiency
    from etude.cost.stacks.stack import Stack as Stack

__getattr__ = face(__name__)
