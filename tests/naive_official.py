"""The official linker and converter as one plain loop over dicts and protobuf messages: the slow twin, and the baseline
of `benchmarks/bench_ingest.py`."""

from __future__ import annotations

import bisect
from collections import defaultdict
from typing import Any

import chakra_pb as pb

ATTRIBUTES = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid")
LAUNCHES = {
    "cuLaunchKernel", "cuLaunchKernelEx", "cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpy", "cudaMemcpyAsync",
    "cudaMemcpyFromSymbol", "cudaMemcpyToSymbol", "cudaLaunchCooperativeKernel", "hipLaunchKernel",
    "hipExtLaunchKernel", "hipExtModuleLaunchKernel", "hipModuleLaunchKernel", "hipMemcpyWithStream", "hipMemcpyAsync",
}  # fmt: skip
TYPES = {"allreduce": 0, "alltoall": 6, "allgather": 2, "reducescatter": 7, "broadcast": 5}


def attributes(node: dict[str, Any]) -> dict[str, Any]:
    return {a["name"]: a["value"] for a in node["attrs"]}


# -- the linker --------------------------------------------------------------------------------------------------------


def own_times(ops: list[dict[str, Any]]) -> None:
    ops = sorted(ops, key=lambda e: (e["ts"], e["dur"]))
    for i, op in enumerate(ops):
        end, regions = op["ts"] + op["dur"], []
        for child in ops[i + 1 :] if len(ops) < 1000 else (ops[j] for j in range(i + 1, len(ops))):
            if child["ts"] >= op["ts"] and child["ts"] + child["dur"] <= end:
                regions.append((child["ts"], child["ts"] + child["dur"]))
            if end < child["ts"]:
                break
        merged: list[tuple[float, float]] = []
        for start, stop in regions:
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
            else:
                merged.append((start, stop))
        op["own"] = op["dur"]
        for start, stop in merged:
            op["own"] -= stop - start


def handovers(threads: dict[Any, list[dict[str, Any]]]) -> None:
    starts = {tid: [e["ts"] for e in ops] for tid, ops in threads.items()}
    for tid, ops in threads.items():
        found = 0
        for i, op in enumerate(ops):
            if i == 0 or op["ts"] - ops[i - 1]["ts"] - ops[i - 1]["dur"] > 1000:
                found, latest = 0, 0.0
                for other, others in threads.items():
                    k = bisect.bisect_left(starts[other], op["ts"])
                    if other != tid and k and starts[other][k - 1] > latest:
                        latest = starts[other][k - 1]
                        first = others[bisect.bisect_left(starts[other], latest)]
                        found = first["args"].get("Record function id") or 0
            op["handover"] = found


def launched(events: list[dict[str, Any]], cpu: list[dict[str, Any]]) -> dict[Any, list[dict[str, Any]]]:
    """Device activities by the external id of the operator that launched them."""
    runtime = {
        e["args"]["correlation"]: e
        for e in events
        if e["cat"] in ("cuda_runtime", "cuda_driver") and e["name"] in LAUNCHES
    }
    starts = [e["ts"] for e in cpu]
    found: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for gpu in events:
        if gpu["cat"] not in ("kernel", "gpu_memcpy") or gpu["args"].get("correlation") not in runtime:
            continue
        call = runtime[gpu["args"]["correlation"]]
        nearest = exact = None
        for k in range(bisect.bisect_left(starts, call["ts"]) - 1, -1, -1):
            op = cpu[k]
            if op["tid"] != call["tid"] or ("nccl" in gpu["name"] and "nccl:coalesced" in op["name"]):
                continue
            nearest = nearest or op
            if op["args"].get("External id") == gpu["args"].get("External id"):
                exact = op
                break
        if exact or nearest:
            found[(exact or nearest)["args"].get("External id")].append(gpu)
    return found


def link(host: dict[str, Any], device: dict[str, Any]) -> list[dict[str, Any]]:
    """The nodes of the linked trace."""
    events = sorted((e for e in device["traceEvents"] if e.get("ph") == "X"), key=lambda e: e["ts"])
    cpu = [e for e in events if e["cat"] in ("cpu_op", "user_annotation") and "ProfilerStep" not in e["name"]]
    threads: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for e in cpu:
        threads[e["tid"]].append(e)
    for ops in threads.values():
        own_times(ops)
    handovers(threads)
    gpu = launched(events, cpu)
    by_rf = {e["args"]["Record function id"]: e for e in cpu if "Record function id" in e["args"]}
    nodes, new, rf_to_id = [], {}, {}
    for node in sorted(host["nodes"], key=lambda n: n["id"]):
        new[node["id"]] = len(nodes)
        rf_id = attributes(node)["rf_id"]
        e = None if "|profiler|" in node["name"] else by_rf.get(rf_id)
        out = {**node, "id": len(nodes), "ctrl_deps": new.get(node["ctrl_deps"])}
        nodes.append(out)
        if e:
            out["own"] = e["own"]
            out["handover"] = rf_to_id.get(e["handover"]) if e["handover"] else None
            for g in gpu.get(e["args"].get("External id"), ()):
                more = {"cat": g["cat"], "stream": g["args"]["stream"], "own": g["dur"]}
                pg = g["args"].get("Process Group Name") if "ncclDevKernel" in g["name"] else None
                nodes.append({**node, "id": len(nodes), "name": g["name"], "ctrl_deps": out["id"], "pg": pg, **more})
        rf_to_id[rf_id] = out["id"]
    return nodes


# -- the converter -----------------------------------------------------------------------------------------------------


def tensor_bytes(value: Any, kind: str) -> int:
    if "Tensor" not in kind:
        return 0
    if kind.startswith("GenericList[Tensor"):
        return sum(v[3] * v[4] for v in value)
    return int(value[3] * value[4])


def comm_attributes(node: dict[str, Any], by_id: dict[int, dict[str, Any]]) -> tuple[int, list[tuple[str, str, Any]]]:
    name, parent = node["name"], by_id[node["ctrl_deps"]]
    caller, kind = by_id[parent["ctrl_deps"]], 7
    group = attributes(parent).get("pg_name") or node["pg"]
    if "ncclDevKernel_SendRecv" in name:
        said = caller["name"] if parent["name"] == "record_param_comms" else parent["name"]
        kind = 5 if "send" in said else 6 if "recv" in said else 7
        if caller["name"] == "record_param_comms":
            group = attributes(caller).get("pg_name")
    found: list[tuple[str, str, Any]] = []
    if kind == 7:
        plain = name.replace("_", "").replace("-", "").lower()
        number = next((t for word, t in TYPES.items() if word in plain), 6 if "SendRecv" in name else None)
        if number is None:
            raise ValueError(name)
        found.append(("comm_type", "int64_val", number))
    sizes = (tensor_bytes(v, t) for v, t in zip(node["inputs"]["values"], node["inputs"]["types"], strict=False))
    found.append(("comm_size", "int64_val", sum(sizes)))
    return kind, [*found, ("pg_name", "string_val", group)] if group else found


def message(node: dict[str, Any], by_id: dict[int, dict[str, Any]], seen: set[int]) -> Any:
    out = pb.Node(id=node["id"], name=node["name"], type=4)
    if node["ctrl_deps"] in seen:
        out.ctrl_deps.append(node["ctrl_deps"])
    out.duration_micros = 0 if "Optimizer.step" in node["name"] else int(node.get("own", 0))
    for side in ("inputs", "outputs"):
        for part in ("values", "shapes", "types"):
            setattr(getattr(out, side), part, str(node[side][part]))
    has = attributes(node)
    attrs = [(name, "int64_val", has[name]) for name in ATTRIBUTES] + [("op_schema", "string_val", has["op_schema"])]
    attrs += [("is_cpu_op", "bool_val", "cat" not in node), ("stream", "int64_val", node.get("stream", 0))]
    if "process_group:init" in node["name"]:
        out.type = 1
    if "cat" in node and ("ncclKernel" in node["name"] or "ncclDevKernel" in node["name"]):
        out.type, more = comm_attributes(node, by_id)
        attrs += more
    for name, kind, value in attrs:
        out.attr.add(name=name, **{kind: value})
    return out


def data_dependencies(nodes: list[dict[str, Any]], messages: dict[int, Any]) -> None:
    by_id, children = {n["id"]: n for n in nodes}, defaultdict(list)
    for n in nodes:
        if n["ctrl_deps"] != n["id"]:
            children[n["ctrl_deps"]].append(n["id"])
    for root in sorted(n["id"] for n in nodes if "|profiler|" in n["name"] and "|thread]" in n["name"]):
        last, stack = None, [root]
        while stack:
            id = stack.pop()
            deps = messages[id].data_deps
            if "cat" not in by_id[id] and by_id[id].get("handover") not in (None, last):
                deps.append(by_id[id]["handover"])
            if last is not None:
                deps.append(last)
            if "cat" not in by_id[id]:
                last = id
            stack += sorted(children[id], reverse=True)


def convert(host: dict[str, Any], device: dict[str, Any] | None = None) -> bytes:
    """The `.et` file."""
    nodes = link(host, device) if device is not None else host["nodes"]
    by_id, seen, messages = {n["id"]: n for n in nodes}, set(), {}
    for node in nodes:
        messages[node["id"]] = message(node, by_id, seen)
        seen.add(node["id"])
    data_dependencies(nodes, messages)
    used = {d for m in messages.values() for d in m.data_deps}
    metadata = pb.GlobalMetadata()
    for name in ("schema", "pid", "time", "start_ts", "finish_ts"):
        kind = "string_val" if isinstance(host[name], str) else "uint64_val"
        metadata.attr.add(name=name, **{kind: host[name]})
    kept = (messages[id] for id in sorted(messages) if messages[id].data_deps or id in used)
    return pb.write_messages(metadata, kept)
