"""Energy of rows of measurements, and of runs at another clock or under a cap."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.steps.energy.clock import ratio_of as ratio_of
    from etude.steps.energy.clock import slowed as slowed
    from etude.steps.energy.clock import step_at as step_at
    from etude.steps.energy.clock import under_cap as under_cap
    from etude.steps.energy.figures import energy_figures as energy_figures
    from etude.steps.energy.rows import energy_rows as energy_rows

__getattr__ = face(__name__)
