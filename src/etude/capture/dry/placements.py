"""How tensors of a list may be placed on a mesh of ranks, found out once for all that are alike.

An operator of a list of sharded tensors (`_foreach_mul_`, `_fused_adamw_`) asks that for each of them, and PyTorch
goes through all placements on all dimensions of the mesh each time, some ten milliseconds; blocks of a model repeat.
"""

import functools
from importlib import import_module
from typing import Any

_LISTS = ("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")


def ask_placements_once() -> None:
    """Keeps what PyTorch finds for a tensor of a list; a PyTorch that is made otherwise is left as it is."""
    try:
        module: Any = import_module("torch.distributed.tensor._ops.utils")
        original = module.expand_to_full_mesh_op_strategy
    except (ImportError, AttributeError):
        return
    known: dict[Any, Any] = {}

    @functools.wraps(original)
    def expand(mesh: Any, schema: Any, strategies: Any, **named: Any) -> Any:
        key = _key(mesh, schema, strategies, named) if schema.op.name().startswith(_LISTS) else None
        if key is None:
            return original(mesh, schema, strategies, **named)
        if key not in known:
            known[key] = original(mesh, schema, strategies, **named)
        return known[key]

    module.expand_to_full_mesh_op_strategy = expand


def look_away_from_placements(watch: Any) -> None:
    """PyTorch finds the shape of a sharded result with tensors of the whole size, which are no operators of the
    program, and are nowhere."""
    try:
        module: Any = import_module("torch.distributed.tensor._sharding_prop")
        owner, name = module.ShardingPropagator, "_propagate_tensor_meta_non_cached"
        original = getattr(owner, name)
    except (ImportError, AttributeError):
        return

    @functools.wraps(original)
    def propagate(*args: Any, **named: Any) -> Any:
        watch.looks_away += 1
        try:
            return original(*args, **named)
        finally:
            watch.looks_away -= 1

    setattr(owner, name, propagate)


def _key(mesh: Any, schema: Any, strategies: Any, named: dict[str, Any]) -> Any:
    """All that PyTorch goes by; None where something of it has no hash."""
    try:
        given = tuple(
            tuple((one.output_specs, one.input_specs and tuple(one.input_specs)) for one in strategy.strategies)
            for strategy in (*schema.args_strategy, *schema.kwargs_strategy)
        )
        options = tuple((name, tuple(one) if isinstance(one, list) else one) for name, one in sorted(named.items()))
        key = schema.op, mesh, given, tuple(map(tuple, strategies)), options
        hash(key)
    except TypeError:
        return None
    return key
