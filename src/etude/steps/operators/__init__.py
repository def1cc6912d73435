"""What a database of operators lacks for a set of models, the cost of measuring it, and databases of other tools."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.steps.operators.needs import ModelWorkload as ModelWorkload
    from etude.steps.operators.needs import Needs as Needs
    from etude.steps.operators.needs import needs_of as needs_of
    from etude.steps.operators.opened import open_ops as open_ops

__getattr__ = face(__name__)
