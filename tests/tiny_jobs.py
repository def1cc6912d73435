"""Small jobs worked by hand that several tests use."""

from etude.model.build import TraceBuilder
from etude.model.schema import Collective, Kind

GROUPS = {"a": [0, 1], "b": [2, 3], "left": [0, 2], "right": [1, 3]}


def ring(
    rank: int, *, first_id: int = 0, first_tag: int = 0, duration_ns: int = 10, name: str = "gemm"
) -> TraceBuilder:
    """Rank r sends to r+1 and receives from r-1 of 4; sums over its pair, then over the other way."""
    b = TraceBuilder()
    b.add(Kind.COMP, name, source_id=first_id, duration_ns=duration_ns)
    b.add(Kind.COLL, "sum", source_id=first_id + 1, data=[0], collective=Collective.ALL_REDUCE, in_bytes=8,
          group="ab"[rank // 2])  # fmt: skip
    b.add(Kind.COLL, "sum2", source_id=first_id + 2, data=[1], collective=Collective.ALL_REDUCE, in_bytes=8,
          group=("left", "right")[rank % 2])  # fmt: skip
    b.add(Kind.SEND, "s", source_id=first_id + 4, data=[2], dst=(rank + 1) % 4, tag=first_tag + rank, in_bytes=5)
    b.add(Kind.RECV, "r", source_id=first_id + 5, src=(rank - 1) % 4, tag=first_tag + (rank - 1) % 4, in_bytes=5)
    return b
