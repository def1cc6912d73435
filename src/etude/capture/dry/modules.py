"""Which module, phase and role a dry run is in: paths of modules, steps of optimizers, weights and gradients."""

from importlib import import_module
from typing import Any

from etude.capture.dry.calls import ModelCalls
from etude.capture.dry.watch import Watch


def watch_modules(torch: Any, watch: Watch, calls: ModelCalls) -> None:
    """Lets `watch` follow calls of modules and steps of optimizers, and `calls` those that no other module makes."""
    module: Any = import_module("torch.nn.modules.module")
    names: dict[int, str] = {}
    entered: list[int] = []

    def before(called: Any, _: Any) -> None:
        if not entered:
            for name, found in called.named_modules():
                names.setdefault(id(found), name)
            note_weights(called)
            calls.begin(called)
        entered.append(id(called))
        watch.modules.append(names.get(id(called), ""))

    def after(called: Any, *_: Any) -> None:
        if id(called) in entered:
            while entered.pop() != id(called):
                watch.modules.pop()
            watch.modules.pop()

    def note_weights(root: Any) -> None:
        roles = watch.storages.roles
        for role, tensors in (("weights", root.parameters()), ("weights", root.buffers())):
            for tensor in tensors:
                number = watch.storages.seen(_local(tensor))
                if number is not None:
                    roles.setdefault(number, role)

    module.register_module_forward_pre_hook(before)
    module.register_module_forward_hook(after, always_call=True)
    optimizer: Any = import_module("torch.optim.optimizer")

    def stepping(stepped: Any, *_: Any) -> None:
        watch.optimizing += 1
        for group in stepped.param_groups:
            for weight in group["params"]:
                _note(watch, weight, "weights")
                _note(watch, getattr(weight, "grad", None), "gradients")

    def stepped(done: Any, *_: Any) -> None:
        watch.optimizing -= 1
        for state in done.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                _note(watch, value, "optimizer")

    optimizer.register_optimizer_step_pre_hook(stepping)
    optimizer.register_optimizer_step_post_hook(stepped)


def _note(watch: Watch, tensor: Any, role: str) -> None:
    if isinstance(tensor, watch.tensor_type):
        number = watch.storages.seen(_local(tensor))
        if number is not None:
            watch.storages.roles.setdefault(number, role)


def _local(tensor: Any) -> Any:
    """The part of a sharded tensor that this rank has."""
    return getattr(tensor, "_local_tensor", tensor)
