"""What PyTorch adds to the work of its operators: the host's time, and that of a device beyond its formulas."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.cost.framework.operators import FrameworkOperator as FrameworkOperator
    from etude.cost.framework.operators import FrameworkOperators as FrameworkOperators
    from etude.cost.framework.operators import open_framework as open_framework
    from etude.cost.framework.recurrent import recurrent_ns as recurrent_ns

__getattr__ = face(__name__)
