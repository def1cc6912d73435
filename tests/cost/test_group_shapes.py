"""Shapes of many groups at once: by hand, and as sets of numbers say for random groups."""

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.cost.groups import GroupShape, GroupSpan, group_shape, group_shapes
from etude.machine import open_system


def by_sets(system, members):
    """The definition, with sets: units of a level, and who sits below them."""
    spans, regular, parts = [], True, {m: {m} for m in members}
    for number, level in enumerate(system.levels):
        above = {}
        for unit, below in parts.items():
            above.setdefault(unit // level.size, {})[unit] = below
        held = [len(below) for below in parts.values()]
        units = [len(inside) for inside in above.values()]
        regular = regular and len(set(held)) == 1 and len(set(units)) == 1
        if len(parts) > len(above):
            whole = max(units) == level.size and level.kind != "mesh"
            spans.append(GroupSpan(number, max(units), max(held), min(held), len(parts) - len(above), whole))
        parts = {unit: set().union(*inside.values()) for unit, inside in above.items()}
    return GroupShape(len(members), tuple(spans), regular)


def test_groups_of_one_shape_share_a_row():
    system = open_system("dgx-h100").resized(32)
    number, shapes = group_shapes(system, np.array([0, 1, 8, 9, 0, 8, 31, 23]), np.array([0, 2, 4, 6, 8]))
    assert number.tolist() == [0, 0, 1, 1]  # two neighbours twice, then two in the same place of two nodes
    assert [(s.size, [(p.level, p.units, p.crossings) for p in s.spans]) for s in shapes] == [
        (2, [(0, 2, 1)]),
        (2, [(1, 2, 1)]),
    ]


@pytest.mark.parametrize("name", ["dgx-h100", "tpu-v5e-pod", "tpu-v6e-pod"])
def test_random_groups_have_the_shape_that_sets_say(name):
    system = open_system(name).resized(64)
    rng = np.random.default_rng(5)
    groups = [rng.permutation(64)[: rng.integers(1, 65)] for _ in range(200)]
    start = np.concatenate([[0], np.cumsum([len(g) for g in groups])])
    number, shapes = group_shapes(system, np.concatenate(groups), start)
    for group, row in zip(groups, number.tolist(), strict=True):
        assert shapes[row] == by_sets(system, group.tolist()) == group_shape(system, group)


def test_an_empty_group_and_a_repeated_rank_are_refused():
    system = open_system("dgx-h100").resized(32)
    with pytest.raises(UsageError, match="without members"):
        group_shapes(system, np.array([0, 1]), np.array([0, 2, 2]))
    with pytest.raises(UsageError, match="of 3 members names a rank twice"):
        group_shapes(system, np.array([0, 1, 4, 5, 4]), np.array([0, 2, 5]))
