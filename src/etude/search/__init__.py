"""Search: the best plan, placement, cut or mix, from what each candidate costs: `etude.search.search("space.yaml")`.

given       a space as a file says it, read key by key
found       what a search gives: the best, the frontier, how many were tried and pruned
run         from a file to what was found; each kind of space is one module with `solve(given, asked)`
"""

from typing import TYPE_CHECKING

from etude.faces import face, verb

if TYPE_CHECKING:
    from etude.search.found import Found as Found
    from etude.search.given import Asked as Asked
    from etude.search.given import Given as Given
    from etude.search.run import is_space as is_space
    from etude.search.run import kept as kept
    from etude.search.run import read_space as read_space
    from etude.search.run import search as search
    from etude.search.run import solve as solve

__getattr__ = face(__name__)
verb(__name__)
