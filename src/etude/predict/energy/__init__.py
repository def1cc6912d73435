"""Energy of rows of measurements, and of runs at another clock or under a cap."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.predict.energy.clock import ratio_of as ratio_of
    from etude.predict.energy.clock import slowed as slowed
    from etude.predict.energy.clock import step_at as step_at
    from etude.predict.energy.clock import under_cap as under_cap
    from etude.predict.energy.figures import energy_figures as energy_figures
    from etude.predict.energy.rows import energy_rows as energy_rows

__getattr__ = face(__name__)
