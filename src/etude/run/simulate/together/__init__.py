"""Several jobs on one fabric: `simulate_jobs([a, b], system, at_ns=[0, 5_000_000])`."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.run.simulate.together.jobs import Together as Together
    from etude.run.simulate.together.jobs import simulate_jobs as simulate_jobs
    from etude.run.simulate.together.texts import ranks_of as ranks_of
    from etude.run.simulate.together.texts import starts_of as starts_of

__getattr__ = face(__name__)
