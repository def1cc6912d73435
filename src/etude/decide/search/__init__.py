"""Search: the best plan, placement, cut or mix, from what each candidate costs: `etude.search("space.yaml")`.

request     what is asked: a space as a file says it, read key by key, and how to search
solver      what a space is, and the methods that go through one
spaces      the kinds of search, a file each
found       what a search gives: the best, the frontier, how many were tried and pruned
run         from a file to what was found
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.decide.search.found import Found as Found
    from etude.decide.search.request import SearchRequest as SearchRequest
    from etude.decide.search.run import is_space as is_space
    from etude.decide.search.run import kept as kept
    from etude.decide.search.run import options_read as options_read
    from etude.decide.search.run import read_space as read_space
    from etude.decide.search.run import search as search
    from etude.decide.search.run import solve as solve

__getattr__ = face(__name__)
