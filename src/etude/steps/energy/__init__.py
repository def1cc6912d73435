"""Energy of rows of measurements, and of runs at another clock or under a cap."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.steps.energy.clock import ratio_of as ratio_of
    from etude.steps.energy.clock import slowed as slowed
    from etude.steps.energy.clock import under_cap as under_cap
    from etude.steps.energy.clocked import Clocked as Clocked
    from etude.steps.energy.rows import energy_rows as energy_rows
    from etude.steps.energy.terms import PowerFound as PowerFound
    from etude.steps.energy.terms import PowerTerms as PowerTerms

__getattr__ = face(__name__)
