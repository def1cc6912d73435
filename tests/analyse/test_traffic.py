import numpy as np

from etude.analyse.traffic import traffic, traffic_matrix
from etude.model.build import TraceBuilder, job_of
from etude.model.schema import Collective, Kind
from training_step import training_step


def test_collectives_and_messages_by_hand():
    builders = []
    for rank in range(3):
        b = TraceBuilder()
        b.add(Kind.COLL, "sum", collective=Collective.ALL_REDUCE, in_bytes=300)
        b.add(Kind.COLL, "all", collective=Collective.ALL_GATHER, in_bytes=10)
        b.add(Kind.COLL, "a2a", collective=Collective.ALL_TO_ALL, in_bytes=60)
        if rank == 0:
            b.add(Kind.SEND, dst=2, tag=1, in_bytes=7)
        if rank == 2:
            b.add(Kind.RECV, src=0, tag=1, in_bytes=7)
        builders.append(b)
    # each member sends 2 * 2/3 * 300 + 2 * 10 + 2/3 * 60 = 460 in two equal parts
    expected = np.full((3, 3), 230.0)
    np.fill_diagonal(expected, 0)
    expected[0, 2] += 7
    matrix, first = traffic_matrix(job_of("three", builders))
    assert np.allclose(matrix, expected)
    assert first.tolist() == [0, 1, 2]


def test_blocks_add_up_to_the_whole():
    job = training_step()
    whole, _ = traffic_matrix(job)
    blocks, first = traffic_matrix(job, 4)
    assert first.tolist() == [0, 2, 4, 6]
    assert np.allclose(blocks, whole.reshape(4, 2, 4, 2).sum((1, 3)))
    assert sum(traffic(job)["size_bytes"].to_pylist()) > 0
