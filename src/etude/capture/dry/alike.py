"""Which places along a dimension of a mesh do the same, by the few that were run.

Places at which the size of a shard changes are known from the program, and differ even where one line of ranks does not
show it, since another may (the last stage of a pipeline). Elsewhere two places that do the same are taken
to have nothing else between them, and between two that do not one more is run, until they are neighbours. Where what
some do comes back after others (ranks that take turns), all are run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import groupby, pairwise

Alike = Callable[[int, int], bool]
"""Whether two ranks that were run do the same."""


def places_to_run(line: Sequence[int], cuts: Collection[int], known: Collection[int], alike: Alike) -> set[int]:
    """Places of a line of ranks of which more has to be known."""
    wanted = {0, len(line) - 1, *cuts}
    there = [place for place, rank in enumerate(line) if rank in known]
    stands = standing_places(line, cuts, known, alike)
    for a, b in pairwise(there):
        if b not in cuts and stands[a] != stands[b]:
            wanted |= {(a + b) // 2 if b - a > 1 else min(b + 1, len(line) - 1), len(line) // 2}
    kinds = [kind for kind, _ in groupby(stands[place] for place in there)]
    if len(set(kinds)) < len(kinds):
        wanted = set(range(len(line)))
    return wanted - set(there)


def standing_places(
    line: Sequence[int], cuts: Collection[int], known: Collection[int], alike: Alike
) -> tuple[int, ...]:
    """Of each place the one that stands for it: the first since the last cut that does the same. One that was not run
    does what the last before it does that was."""
    found: list[int] = []
    since = 0
    for place, rank in enumerate(line):
        if not place or rank not in known:
            found.append(found[-1] if place else 0)
            continue
        since = place if place in cuts else since
        earlier = [one for one in dict.fromkeys(found) if one >= since and line[one] in known]
        found.append(next((one for one in earlier if alike(line[one], rank)), place))
    return tuple(found)
