import numpy as np
import pytest

from etude.analyse.peaks import peak_bus_bandwidth
from etude.machine import open_system
from etude.model.schema import Collective


@pytest.mark.parametrize(
    ("ranks", "collective", "peak"),
    [
        (range(8), Collective.ALL_REDUCE, lambda inner, outer: inner),
        (range(4), Collective.ALL_TO_ALL, lambda inner, outer: inner),
        (range(16), Collective.ALL_REDUCE, lambda inner, outer: min(inner, 8 * outer)),
        ((0, 8), Collective.ALL_REDUCE, lambda inner, outer: outer),
        (range(16), Collective.ALL_TO_ALL, lambda inner, outer: min(inner, outer * 15 / 8)),
        ((3,), Collective.ALL_REDUCE, lambda inner, outer: None),
        ((0, 99), Collective.ALL_REDUCE, lambda inner, outer: None),
    ],
)
def test_the_narrowest_level_that_a_group_crosses_counts(ranks, collective, peak) -> None:  # type: ignore[no-untyped-def]
    system = open_system("dgx-h100").resized(16)
    inner, outer = (level.bandwidth_bytes_per_s / level.oversubscription for level in system.levels)
    assert peak_bus_bandwidth(system, np.array(list(ranks)), collective) == peak(inner, outer)
