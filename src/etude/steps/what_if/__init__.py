"""What if: predictions of edited jobs, compared with those of the original jobs."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.steps.what_if.pair import WhatIf as WhatIf
    from etude.steps.what_if.pair import findings as findings
    from etude.steps.what_if.pair import over_seeds as over_seeds
    from etude.steps.what_if.pair import simulated_again as simulated_again
    from etude.steps.what_if.pair import summary_of as summary_of
    from etude.steps.what_if.pair import what_if as what_if

__getattr__ = face(__name__)
