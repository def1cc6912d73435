"""How a model that is given is distributed and trained: what a PyTorch user would write around it."""

import os
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from etude.capture.dry.assumptions import state
from etude.capture.dry.driven.request import DrivenProgram


def place_of(torch: Any) -> Any:
    """The device of this rank; its process group is made where there are several."""
    world, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    has_device = torch.cuda.is_available()
    if has_device:
        torch.cuda.set_device(local)
    if world > 1:
        torch.distributed.init_process_group("nccl" if has_device else "gloo")
    return torch.device("cuda", local) if has_device else torch.device("cpu")


def repeated_blocks(torch: Any, model: Any) -> list[tuple[Any, str, Any]]:
    """(Owner, name, block) of modules that a list or a sequence repeats, the outermost: layers of a transformer."""
    return list(_repeated(torch, model))


def _repeated(torch: Any, module: Any) -> Iterator[tuple[Any, str, Any]]:
    lists = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)
    often: Counter[Any] = Counter()
    if isinstance(module, lists):
        inner = (one for one in module.children() if any(one.children()) and any(True for _ in one.parameters()))
        often = Counter(type(one) for one in inner)
    for name, child in module.named_children():
        if often[type(child)] > 1:
            yield module, name, child
        else:
            yield from _repeated(torch, child)


def distributed_model(torch: Any, model: Any, asked: DrivenProgram, place: Any) -> Any:
    """The model on its device, its blocks recomputed, in the data types and over the ranks that were asked for."""
    blocks = repeated_blocks(torch, model)
    kinds = Counter(type(block).__name__ for *_, block in blocks)  # before wrappers have classes of their own
    if asked.recompute != "none":
        _recompute(torch, blocks, asked.recompute)
        blocks = [(owner, name, getattr(owner, name)) for owner, name, _ in blocks]
    world = torch.distributed.get_world_size() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else 1
    if asked.is_sharded(world):
        shown = ", ".join(f"{count} {name}" for name, count in kinds.items())
        state(f"sharded by fully_shard: {shown or 'no block'}, and the rest")
        _shard(torch, model, [block for *_, block in blocks], asked, place)
        return model.to_empty(device=place)
    _materialise(model, place)
    if world == 1:
        return model
    more = {"bucket_cap_mb": asked.bucket_bytes / 2**20} if asked.bucket_bytes else {}
    ids = [place.index] if place.type == "cuda" else None
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=ids, **more)


def _materialise(model: Any, place: Any) -> None:
    """Gives weights their storage on a device; those that several modules share stay shared."""
    owners: dict[int, list[tuple[Any, str]]] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            owners.setdefault(id(weight), []).append((module, name))
    model.to_empty(device=place)
    for (first, key), *others in owners.values():
        for module, name in others:
            module._parameters[name] = first._parameters[key]


def _recompute(torch: Any, blocks: list[tuple[Any, str, Any]], kind: str) -> None:
    """Keeps of each block what goes into it. PyTorch ends recomputation when all that is needed is there; `full` runs
    the whole block."""
    wrapper: Any = import_module("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")
    for owner, name, block in blocks:
        setattr(owner, name, wrapper.checkpoint_wrapper(block))
    if kind == "full":
        torch.utils.checkpoint.set_checkpoint_early_stop(False).__enter__()
    if not blocks:
        state("nothing is recomputed: the model repeats no block")


def _shard(torch: Any, model: Any, blocks: list[Any], asked: DrivenProgram, place: Any) -> None:
    fsdp: Any = import_module("torch.distributed.fsdp")
    world = torch.distributed.get_world_size()
    parts = asked.dp_shard or world
    shape, names = ((world,), ("dp",)) if parts == world else ((world // parts, parts), ("replicate", "shard"))
    mesh = torch.distributed.device_mesh.init_device_mesh(place.type, shape, mesh_dim_names=names)
    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    named: dict[str, Any] = {"mesh": mesh}
    if asked.precision == "bf16":
        named["mp_policy"] = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=types[asked.grad_dtype])
    for block in blocks:
        fsdp.fully_shard(block, reshard_after_forward=not asked.keep_gathered, **named)
    fsdp.fully_shard(model, **named)  # PyTorch keeps what the root has gathered until the backward pass


def optimizer_of(torch: Any, model: Any, asked: DrivenProgram) -> Any:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if asked.optimizer == "adamw":
        return torch.optim.AdamW(weights, lr=1e-4)
    return torch.optim.SGD(weights, lr=1e-4, momentum=0.9 if asked.optimizer == "momentum" else 0.0)
