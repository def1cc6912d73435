"""Plans of a model on a cluster: which axes, which of them can be, and the best by simulation.

axes        the values of each axis, those that are usual where none are given
space       what is searched, from a file or from the command line
candidates  every combination as a plan; what is not a plan, or the same as another
scores      what a plan is judged by, limits, and what it can be at best
tasks       one plan in a worker: its bound, its memory, its simulation
search      the space that is solved: its bounds, its rows, the placement of the best
rows        what is said of a plan, and the breakdown of the best, side by side
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.decide.search.plans.axes import NARROW as NARROW
    from etude.decide.search.plans.axes import parse_over as parse_over
    from etude.decide.search.plans.search import search_plans as search_plans
    from etude.decide.search.plans.space import PlanSpace as PlanSpace
    from etude.decide.search.plans.space import space_of as space_of

__getattr__ = face(__name__)
