"""Runs of vLLM: a folder with `meta.json` (model, engine limits, device and blocks where known), `requests.jsonl`
(queued, first and last token of each request) and `config.json` (hardware, memory, links)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from etude.base.errors import FormatError, UsageError
from etude.machine import Device, System, device_names, open_device
from etude.machine.system import Level, LevelKind
from etude.make.generate.model import Model, open_model
from etude.make.generate.passes import held_by
from etude.world.serve.catalogue import pass_tables
from etude.world.serve.deployment import replica_plan
from etude.world.serve.engine import Engine
from etude.world.serve.measured.run import MeasuredRun, means
from etude.world.serve.profiles import GRAPHS, profile_cost
from etude.world.serve.requests import requests_of
from etude.world.serve.stacks import serving_stack
from etude.world.serve.steps import StepCost

UTILISATION: Final = 0.9
BUDGET: Final = 2048
"""`max_num_batched_tokens` where a run does not say."""
SEQUENCES: Final = 256
BLOCK: Final = 16
LINK_GBYTE_PER_S: Final = 16
LINK_NS: Final = 1000
"""... and other values."""


def vllm_run(folder: Path, ops: Path | None) -> MeasuredRun:
    """With a profile the times of its operators, else those of the catalogue."""
    meta, config = _json(folder / "meta.json"), _json(folder / "config.json", needed=False)
    limits = meta.get("engine_kwargs") or {}
    model = open_model(str(meta.get("model") or limits.get("model")))
    tp, dp = int(limits.get("tensor_parallel_size") or 1), int(limits.get("data_parallel_size") or 1)
    resolved = meta.get("resolved_config") or {}
    device = _device(meta, config)
    budget = int(limits.get("max_num_batched_tokens") or BUDGET)
    ep = tp * dp if limits.get("enable_expert_parallel") and model.experts else 1
    system = _system(device, tp * dp, config)
    assumed: list[str] = []
    together = dp > 1 and bool(model.experts)
    held = model.replace(experts=model.experts // dp) if together else model  # groups share the experts
    blocks, size = _blocks(meta, config, held, device, tp, budget, assumed)
    engine = Engine(
        max_num_batched_tokens=budget,
        max_num_seqs=int(limits.get("max_num_seqs") or SEQUENCES),
        block_size=size,
        num_gpu_blocks=blocks,
        enable_prefix_caching=bool((meta.get("kv_cache") or {}).get("enable_prefix_caching", True)),
        async_scheduling=bool((resolved.get("scheduler_config") or {}).get("async_scheduling", True)),
        barrier=together,
    )
    graphs = (resolved.get("compilation_config") or {}).get("cudagraph_capture_sizes") or GRAPHS
    cost = _cost(model, device, system, tp, ep, dp if together else 1, [int(g) for g in graphs], ops)
    rows = _requests(folder / "requests.jsonl")
    queued, first, last = (rows[name] for name in ("queued_ts", "first_token_ts", "last_token_ts"))
    output = rows["output_toks"].astype(np.int64)
    # The engine takes requests in between two passes; the client recorded when they arrived.
    arrival = rows.get("arrival_time", queued)
    return MeasuredRun(
        requests=requests_of(np.round((arrival - arrival.min()) * 1e9), rows["input_toks"], output),
        engine=engine,
        cost=cost,
        measured=means(queued, first, last, output),
        since="queued",
        options={"replicas": dp, "router": "least"},
        assumed=[*assumed, f"steps: {'profile' if ops is not None else 'catalogue'}"],
        unstated=_unstated(meta, config, device, arrivals="arrival_time" in rows),
    )


def _unstated(meta: dict[str, Any], config: dict[str, Any], device: Device, *, arrivals: bool) -> list[str]:
    """What the files of a run do not say, and the value that was taken."""
    limits, cache, resolved = (meta.get(name) or {} for name in ("engine_kwargs", "kv_cache", "resolved_config"))
    kinds = (
        (limits.get("max_num_batched_tokens"), f"max_num_batched_tokens {BUDGET:,}"),
        (limits.get("max_num_seqs"), f"max_num_seqs {SEQUENCES}"),
        (limits.get("tensor_parallel_size"), "tensor parallel 1"),
        (limits.get("data_parallel_size"), "data parallel 1"),
        (cache.get("block_size"), f"blocks of {BLOCK} tokens"),
        ("enable_prefix_caching" in cache, "prefix caching is on"),
        ("async_scheduling" in (resolved.get("scheduler_config") or {}), "asynchronous scheduling is on"),
        ((resolved.get("compilation_config") or {}).get("cudagraph_capture_sizes"), "sizes of CUDA graphs: vLLM's own"),
        (config.get("link_bw"), f"links of {LINK_GBYTE_PER_S} GB/s between the devices"),
        (config.get("link_latency"), f"links with a latency of {LINK_NS} ns"),
        (arrivals, "requests arrive when the engine accepts them"),
    )
    return [f"device {device.name}", "stack vllm", "precision bf16", *(text for stated, text in kinds if not stated)]


def _json(path: Path, *, needed: bool = True) -> dict[str, Any]:
    if not path.is_file() and not needed:
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as problem:
        raise FormatError(f"cannot be read: {problem.strerror}", path=path) from None
    except ValueError:
        raise FormatError("is not JSON", path=path) from None
    if not isinstance(found, dict):
        raise FormatError("is not an object", path=path)
    return found


def _requests(path: Path) -> dict[str, Any]:
    """Columns of the requests that were answered."""
    import msgspec

    try:
        rows = msgspec.json.Decoder().decode_lines(path.read_bytes())
    except (OSError, msgspec.DecodeError) as problem:
        raise FormatError(f"cannot be read: {problem}", path=path) from None
    names = ["input_toks", "output_toks", "queued_ts", "first_token_ts", "last_token_ts"]
    names += ["arrival_time"] if rows and "arrival_time" in rows[0] else []
    try:
        columns = {name: np.array([float(row[name]) for row in rows]) for name in names}
    except (KeyError, TypeError, ValueError) as problem:
        raise FormatError(f"a request has no {problem}", path=path) from None
    if not rows:
        raise FormatError("has no requests", path=path)
    return columns


def _instance(config: dict[str, Any]) -> dict[str, Any]:
    try:
        return dict(config["nodes"][0]["instances"][0])
    except (KeyError, IndexError, TypeError):
        return {}


def _device(meta: dict[str, Any], config: dict[str, Any]) -> Device:
    """Device of the catalogue: by the name in config.json, or that of the driver."""
    named = str(_instance(config).get("hardware") or (meta.get("hardware") or {}).get("device_name") or "")
    bare = _bare(named)
    for name in device_names():
        if bare and (_bare(name) in bare or bare in _bare(open_device(name).name)):
            return open_device(name)
    raise UsageError(f"device `{named}` is not in the catalogue", hint=f"known: {', '.join(device_names())}")


def _bare(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def _system(device: Device, ranks: int, config: dict[str, Any]) -> System:
    """Devices behind one switch, with the links of config.json (GB/s and ns)."""
    bandwidth = float(config.get("link_bw") or LINK_GBYTE_PER_S) * 1e9
    latency = int(config.get("link_latency") or LINK_NS)
    level = Level(
        name="node", kind=LevelKind.SWITCH, size=max(ranks, 1), bandwidth_bytes_per_s=bandwidth, latency_ns=latency
    )
    return System(name="run", device=device, levels=(level,))


def _blocks(
    meta: dict[str, Any], config: dict[str, Any], model: Model, device: Device, tp: int, budget: int, assumed: list[str]
) -> tuple[int, int]:
    """Blocks of keys and values, and tokens of each: as the engine said, else what its memory leaves."""
    cache = meta.get("kv_cache") or {}
    size = int(cache.get("block_size") or BLOCK)
    if cache.get("num_gpu_blocks"):
        return int(cache["num_gpu_blocks"]), size
    memory = _instance(config).get("npu_mem") or {}
    room = float(memory.get("mem_size") or 0) * 1e9 or float(device.memory_bytes)
    part = float(memory.get("mem_util") or cache.get("gpu_memory_utilization") or UTILISATION)
    held = held_by(model, replica_plan(model, tp), budget)
    left = room * part - held.weights_bytes - held.working_bytes
    blocks = int(left // (held.token_bytes * size))
    if blocks < 1:
        raise UsageError(f"no memory for keys and values next to {held.weights_bytes / 1e9:.1f} GB of weights")
    assumed.append(f"{blocks:,} blocks of keys and values: what {part:.0%} of {room / 1e9:.0f} GB leaves")
    return blocks, size


def _cost(
    model: Model, device: Device, system: System, tp: int, ep: int, groups: int, graphs: list[int], ops: Path | None
) -> StepCost:
    name = next(n for n in device_names() if open_device(n).name == device.name)
    stack = serving_stack("vllm", name)
    if ops is None:
        plan = replica_plan(model, tp, ep=tp if ep > 1 else 1)
        return pass_tables(model, plan, system, groups=groups).step_cost(stack, graphs=graphs)
    return profile_cost(ops, model, system, stack, tp=tp, spread=ep, groups=groups, graphs=graphs)
