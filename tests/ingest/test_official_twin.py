"""The official rules on columns against the plain loop, on programs that nobody thought of."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import naive_official
from etude.capture.ingest import official
from etude.store import chakra
from recorded import PROCESS, THREAD, event, kernel, launch, node, op, read_device_json, read_host_json

NAMES = [
    "aten::mm",
    "nccl:all_reduce",
    "record_param_comms",
    "nccl:send 0->1",
    "Optimizer.step#A",
    "nccl:coalesced",
    "c10d::recv_",
]
KERNELS = ["gemm", "ncclDevKernel_AllReduce_Sum(x)", "ncclDevKernel_SendRecv(x)", "Memcpy DtoH", "ncclKernel_AllGather"]
TENSOR = ([[11, 2, 0, 256, 4, "cuda:0"]], [[256]], ["Tensor(float)"])
LIST = ([[[1, 2, 0, 8, 2, "cpu"], [3, 4, 0, 8, 2, "cpu"]], 0.5, None], [], ["GenericList[Tensor(float)]", "Double"])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A host and a device trace of the same run: threads of operators, some nested, that launch kernels."""
    nodes, events = [node(1, PROCESS, 1)], []
    roots = [2 + t for t in range(draw(st.integers(1, 3)))]
    nodes += [node(root, THREAD, 1, tid=root) for root in roots]
    ts = {root: draw(st.integers(1, 50)) / 4 for root in roots}
    open_ops: dict[int, list[tuple[int, float]]] = {root: [] for root in roots}
    for number in range(draw(st.integers(1, 12))):
        root = draw(st.sampled_from(roots))
        ts[root] += draw(st.sampled_from([0.0, 0.25, 3.125, 1500.5]))
        while open_ops[root] and open_ops[root][-1][1] < ts[root]:
            open_ops[root].pop()
        inside = open_ops[root][-1] if open_ops[root] else (root, 1e9)
        dur = min(draw(st.integers(0, 80)) / 8, inside[1] - ts[root])
        rf, id, name = number + 1, 10 + 2 * number, draw(st.sampled_from(NAMES))
        more: dict[str, Any] = {"pg_name": draw(st.sampled_from(["", "3"]))} if name == "record_param_comms" else {}
        nodes.append(node(id, name, inside[0], rf, root, inputs=draw(st.sampled_from([TENSOR, LIST])), **more))
        events.append(op(name, ts[root], dur, rf, tid=f"t{root}"))
        open_ops[root].append((id, ts[root] + dur))
        for k in range(draw(st.integers(0, 2))):
            at, correlation = ts[root] + draw(st.sampled_from([0.0, 0.125, 1.0])), 100 * rf + k
            call = draw(st.sampled_from(["cudaLaunchKernel", "cudaMemcpyAsync", "cudaGraphLaunch"]))
            external = draw(st.sampled_from([rf, rf, 999]))
            args = draw(st.sampled_from([{}, {"Process Group Name": "5"}]))
            name, dur = draw(st.sampled_from(KERNELS)), draw(st.integers(0, 99)) / 8
            events.append(launch(at, correlation, call, f"t{root}"))
            events.append(kernel(name, at + 5, dur, correlation, external, **args))
    events.append(event("user_annotation", "ProfilerStep#1", 0, 1e4, "t2", **{"Record function id": 500}))
    draw(st.randoms(use_true_random=False)).shuffle(events)
    top = {"schema": "1.1.0-chakra.0.0.4", "pid": 7, "time": "now", "start_ts": 5}
    order = draw(st.permutations(nodes))
    return {**top, "nodes": list(order), "finish_ts": 9}, {"traceEvents": events}


@settings(max_examples=70)
@given(pairs())
def test_columns_agree_with_the_plain_loop(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    host, device = pair
    ours = bytes(chakra.encode(official.convert(read_host_json(host), read_device_json(device))[0]))
    assert ours == naive_official.convert(json.loads(json.dumps(host)), json.loads(json.dumps(device)))
    alone = bytes(chakra.encode(official.convert(read_host_json(host))[0]))
    assert alone == naive_official.convert(json.loads(json.dumps(host)))
