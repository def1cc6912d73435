import numpy as np

from etude.model.build import TraceBuilder, job_of
from etude.model.fold import fold
from etude.model.schema import UNKNOWN, Kind
from etude.model.summary import summary
from etude.model.timing import measured
from tiny_jobs import GROUPS, ring


def test_sums_are_over_ranks_folded_or_not() -> None:
    job = job_of("ring", [ring(r) for r in range(4)], GROUPS)
    found = summary(job)
    assert found["ranks"] == found["world_size"] == 4
    assert found["nodes"] == 20
    assert found["nodes_by_kind"] == {"COMP_NODE": 4, "COMM_SEND_NODE": 4, "COMM_RECV_NODE": 4, "COMM_COLL_NODE": 8}
    assert found["collectives"] == [{"type": "ALL_REDUCE", "count": 8, "bytes": 64}]
    assert found["p2p"] == {"sends": 4, "recvs": 4, "bytes_sent": 20}
    assert found["duration_ns"] == 40
    assert found["span_ns"] is None
    assert found["group_sizes"] == {"2": 4}
    assert summary(fold(job)) | {"distinct_traces": 4} == found


def test_own_values_count_and_sums_do_not_overflow() -> None:
    job = fold(job_of("v", [ring(1, duration_ns=10), ring(1, duration_ns=2**62), ring(1, duration_ns=2**62)], GROUPS))
    assert len(job.traces) == 1
    assert summary(job)["duration_ns"] == 10 + 2**63


def test_span_is_last_end_less_first_start_on_the_common_clock() -> None:
    b = TraceBuilder()
    b.add(Kind.COMP, duration_ns=5)
    b.add(Kind.COMP)
    job = job_of("t", [b, b])
    starts = [np.array([100, UNKNOWN]), np.array([103, UNKNOWN])]
    timing = measured(starts, [t.duration_ns for t in job.traces])
    assert summary(job.replace(timing=timing))["span_ns"] == 8  # 100 to 108
