"""The host that issues ops, and what the ops of a layer move: figures worked by hand."""

from typing import Any

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.machine import open_system
from etude.make.generate.blocks.transformer import CALLS_OF_16_BITS, CALLS_OF_ROUTER, layer
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import generate, shard_of
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace
from etude.run.simulate.run import simulate

DENSE = Model(name="tiny", layers=2, hidden=64, heads=8, kv_heads=4, ffn=192, vocab=512, seq=64, gated=True)
MIXTURE = DENSE.replace(name="moe", experts=8, top_k=2, expert_ffn=32)


def trace_of(m: Model, **plan: Any) -> Trace:
    return generate(m, Plan.from_dict({"seq": m.seq, **plan})).job.traces[0]


def host_ns(trace: Trace) -> int:
    return int(trace.duration_ns[trace.cpu == 1].sum())


def named(trace: Trace, column: str, word: str) -> np.ndarray:
    codes, words = trace.coded(column)
    return np.array([w == word for w in words] + [False])[codes]


def test_the_host_issues_each_op_once_and_casts_with_their_product():
    plain, cast = trace_of(DENSE, host="10us"), trace_of(DENSE, host="10us", precision="fp8")
    assert host_ns(plain) == 10_000 * len(trace_of(DENSE))
    assert len(cast) > len(plain)
    assert host_ns(cast) == host_ns(plain)


def test_a_host_that_is_slow_sets_the_pace():
    """A millisecond an op is longer than any op of these takes: the step lasts as long as the host, and the last op."""
    job = generate(DENSE, Plan(seq=64, host_ns=1e6)).job
    assert simulate(job, open_system("dgx-h100")).makespan_ns == pytest.approx(host_ns(job.traces[0]), rel=0.001)


@pytest.mark.parametrize("sp", [True, False])
def test_pieces_of_a_layer_are_one_call(sp: bool):
    """What is exchanged beside the pieces of a product is issued with it, forward and backward."""
    whole, cut = (shard_of(DENSE, Plan(gpus=2, tp=2, seq=64, sp=sp, tp_chunks=n)) for n in (1, 4))
    calls = [[o.calls + sum(b.calls for b in o.backward) for o in layer(DENSE, local, experts=False)]
             for local in (whole, cut)]  # fmt: skip
    assert len(calls[1]) > len(calls[0])
    assert sum(calls[0]) == sum(calls[1])


def test_graphs_leave_what_routing_sizes_to_the_host():
    """None of a dense step. Of a layer with experts four permutations (two ops each), two products (one op, and a part
    for each of the rank's experts), the activation and two exchanges; backward as many, and each product twice."""
    assert host_ns(trace_of(DENSE, host="10us", graphs=True)) == 0
    found = trace_of(MIXTURE, gpus=4, ep=4, host="10us", graphs=True)
    product = 1 + 2 * CALLS_OF_16_BITS
    forward = 4 * 2 + 2 * product + 1 + 2
    backward = 4 * 2 + 4 * product + 1 + 2
    assert host_ns(found) == pytest.approx(2 * 10_000 * (forward + backward), abs=40)


def test_graphs_hold_experts_of_one_size():
    assert host_ns(trace_of(MIXTURE, gpus=4, ep=4, host="10us", graphs=True, capacity=1.0)) == 0


def test_the_host_waits_for_the_tokens_of_each_expert():
    """It goes on when the router is done; with a capacity it knows the sizes beforehand."""
    for capacity, waits in ((0.0, True), (1.5, False)):
        trace = trace_of(MIXTURE, gpus=4, ep=4, host="10us", capacity=capacity)
        gate = np.flatnonzero(
            named(trace, "name", "aten::_softmax") & named(trace, "module", "layers.0.experts.router")
        )[0]
        issuing = gate + 1
        assert trace.cpu[issuing] == 1
        assert (gate in trace.data[slice(*trace.data_start[issuing : issuing + 2])]) == waits
    router = trace_of(MIXTURE, gpus=4, ep=4, host="10us")
    times = router.duration_ns[np.flatnonzero(named(router, "name", "aten::_softmax")) - 1]
    assert times.tolist() == [10_000 * CALLS_OF_ROUTER] * 2


@pytest.mark.parametrize(
    ("plan", "each"),
    [({}, 4), ({"global_batch": 2}, 8), ({"global_batch": 2, "grad_dtype": "bf16"}, 4), ({"zero": 3, "gpus": 2}, 2)],
    ids=str,
)
def test_gradients_of_weights_are_added_where_micro_batches_are_summed(plan: dict[str, Any], each: int):
    """Of a product k x n over m tokens: its two inputs in 16 bits, and for each weight its gradient written once in the
    type in which gradients are summed, or read and written; sharded ones are written as they are."""
    trace = trace_of(DENSE, **plan)
    weight = named(trace, "phase", "backward-weight") & named(trace, "module", "layers.0.ffn.down")
    weight &= trace.kind == int(Kind.COMP)
    k, n, m = 192, 64, 64
    assert set(trace.tensor_bytes[weight].tolist()) == {2 * (k * m + m * n) + each * k * n}


def test_a_loss_is_cast_to_32_bits_and_its_gradient_back():
    trace = trace_of(DENSE)
    loss = named(trace, "module", "head.loss") & (trace.tensor_bytes != UNKNOWN)
    logits = 64 * 512
    assert trace.tensor_bytes[loss].tolist() == [6 * logits, 8 * logits, 8 * logits, 6 * logits]


def test_first_and_last_stage_may_have_no_layer():
    """The embedding and the head are theirs; a stage between them needs one."""
    found = generate(DENSE, Plan(gpus=4, pp=4, seq=64, global_batch=8, stages=(0, 1, 1, 0)))
    assert [sum("layers." in b.name for b in stage) for stage in found.layout.stages] == [0, 1, 1, 0]
    with pytest.raises(UsageError, match="stage 1 has no layers"):
        generate(DENSE, Plan(gpus=4, pp=4, seq=64, global_batch=8, stages=(1, 0, 0, 1)))
