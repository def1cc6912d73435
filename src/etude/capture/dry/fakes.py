"""Tensors without numbers, on a device that is not there.

PyTorch's fake tensors know shapes, strides, types and their device. A build without CUDA cannot answer what its C++
parts ask about a CUDA device (streams of the backward pass, guards), so these parts find a tensor on the
host; Python, and the rules that give a result its device, see the device that the program chose.
"""

import contextlib
import types
from collections.abc import Iterator
from importlib import import_module
from typing import Any


def fake_mode(torch: Any) -> Any:
    """The mode in which every tensor is a fake one."""
    module: Any = import_module("torch._subclasses.fake_tensor")
    import_module("torch._functorch.config").fake_tensor_prefer_device_type = "cuda"  # type: ignore[attr-defined]
    module.init_gpu_context = lambda device: None
    module.CONSTANT_NUMEL_LIMIT = 0  # numbers that are known are kept elsewhere, also those of other devices
    _answer_device_as_host(torch, module)
    _allow_swaps(torch)
    _allow_lists_of_fakes(module)

    class DryMode(module.FakeTensorMode):  # type: ignore[misc]
        avoid_device_init = True

    return DryMode(allow_non_fake_inputs=True)


def device_asked(torch: Any) -> Any:
    """The operator by which C++ asks for the device of a tensor."""
    return torch.ops.prim.device.default


def device_answered(torch: Any, args: Any) -> Any:
    return torch.device("meta" if args[0].fake_mode.in_kernel_invocation else "cpu")


def _answer_device_as_host(torch: Any, module: Any) -> None:
    asked, base = device_asked(torch), module.FakeTensor.__torch_dispatch__.__func__
    module._DISPATCH_META_HANDLERS[asked] = lambda args: device_answered(torch, args)

    def dispatch(cls: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is asked:
            return device_answered(torch, args)
        return base(cls, function, types, args, kwargs or {})

    module.FakeTensor.__torch_dispatch__ = classmethod(dispatch)
    for name in ("cuda", "cpu", "meta"):  # programs, and PyTorch's own Python, ask so as well
        setattr(module.FakeTensor, f"is_{name}", _is_on(name))


def _is_on(kind: str) -> property:
    def answer(given: Any) -> bool:
        return bool(given.device.type == kind)

    return property(answer)


def _allow_swaps(torch: Any) -> None:
    """`module.to(...)` replaces fake parameters in place, and refuses those that something refers to weakly, as the
    record of allocations does."""
    import_module("torch.utils").weakref = types.SimpleNamespace(getweakrefs=lambda tensor: ())  # type: ignore[attr-defined]


def _allow_lists_of_fakes(module: Any) -> None:
    """Optimizers take their kernels over lists of tensors where every parameter is of a known class."""
    for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
        known = getattr(import_module(name), "_foreach_supported_types", None)
        if isinstance(known, list) and module.FakeTensor not in known:
            known.append(module.FakeTensor)


def with_numbers(torch: Any) -> Any:
    """A context in which tensors are real: for what decides who talks with whom."""
    disabled: Any = import_module("torch.utils._python_dispatch")._disable_current_modes

    @contextlib.contextmanager
    def real() -> Iterator[None]:
        with disabled(), torch._C.DisableTorchFunction():
            yield

    return real
