"""Calls of PyTorch that a dry run answers itself, before they become operators: devices and numbers."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from etude.capture.dry.numbers import Numbers
from etude.capture.dry.values import Answers


def answering(torch: Any, answers: Answers, numbers: Numbers, called: list[Any]) -> Any:
    """The mode that changes these calls. `called` holds the functions that the program is in."""
    from torch.overrides import TorchFunctionMode

    asked = _asked(torch, answers, numbers)
    device_type = torch.device

    class Answering(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(function)
            try:
                return self._changed(function, args, kwargs or {})
            finally:
                called.pop()

        def _changed(self, function: Any, args: Any, named: dict[str, Any]) -> Any:
            answer = asked.get(function)
            if function is not device_type and answer is None:
                if "device" in named:
                    named = {**named, "device": indexed(torch, named["device"])}
                for one in args:
                    if isinstance(one, (device_type, str)):
                        args = tuple(indexed(torch, x) if isinstance(x, (device_type, str)) else x for x in args)
                        break
            return function(*args, **named) if answer is None else answer(function, args, named)

    mode = Answering()
    _keep_in_backward(mode)
    return mode


def _keep_in_backward(mode: Any) -> None:
    """A mode is off inside of what it was asked about. What a backward pass runs is the program's own, and is changed
    too."""
    module: Any = import_module("torch.autograd")
    original = module._engine_run_backward

    def run(*args: Any, **named: Any) -> Any:
        with mode:
            return original(*args, **named)

    module._engine_run_backward = run


def indexed(torch: Any, device: Any) -> Any:
    """A CUDA device with its number, for which C++ would ask the device that is not there; the host without one."""
    if isinstance(device, int) and not isinstance(device, bool):
        return torch.device("cuda", device)
    if isinstance(device, str) and device.partition(":")[0] in ("cuda", "cpu"):
        device = torch.device(device)
    if isinstance(device, torch.device) and device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    return torch.device("cpu") if isinstance(device, torch.device) and device.type == "cpu" else device


def _asked(torch: Any, answers: Answers, numbers: Numbers) -> dict[Any, Callable[..., Any]]:
    tensor = torch.Tensor

    def moved(function: Any, args: Any, named: dict[str, Any]) -> Any:
        return _moved(torch, function, args, named)

    def number(kind: str) -> Callable[..., Any]:
        def answer(function: Any, args: Any, named: dict[str, Any]) -> Any:
            exchanged = numbers.exchanged(args[0])
            if numbers.of(args[0]) is not None and not (exchanged and answers.states(args[0])):
                if exchanged:
                    answers.read(args[0])
                return numbers.value(args[0], function)
            if not hasattr(args[0], "fake_mode"):
                return function(*args, **named)
            answers.read(args[0])
            return answers.of(args[0], kind=kind)

        return answer

    def array(function: Any, args: Any, named: dict[str, Any]) -> Any:
        known = numbers.of(args[0]) is not None
        return (
            numbers.value(args[0], lambda real: function(real.clone(), *args[1:], **named))
            if known
            else (function(*args, **named))
        )

    def listed(given: Any) -> Any:
        if numbers.of(given) is not None:
            return numbers.value(given, tensor.tolist)
        order = answers.order(given.numel())
        if order is not None:
            return order
        answers.read(given)
        return _nested(list(given.shape), lambda: answers.of(given, kind="item"))

    def finite(holds: bool) -> Callable[..., Any]:
        def answer(function: Any, args: Any, named: dict[str, Any]) -> Any:
            found = function(*args, **named)
            numbers.assume(found, holds)
            return found

        return answer

    # A fake tensor has a `tolist` of its own, which asks for one number after another.
    fakes: Any = import_module("torch._subclasses.fake_tensor")
    fakes.FakeTensor.tolist = listed

    table: dict[Any, Callable[..., Any]] = {
        tensor.to: moved,
        tensor.cuda: moved,
        tensor.cpu: moved,
        tensor.item: number("item"),
        tensor.__float__: number("float"),
        tensor.__int__: number("int"),
        tensor.__bool__: number("bool"),
        tensor.__index__: number("int"),
        **dict.fromkeys((torch.isnan, torch.isinf, tensor.isnan, tensor.isinf), finite(False)),
        **dict.fromkeys((torch.isfinite, tensor.isfinite), finite(True)),
        tensor.numpy: array,
        tensor.__array__: array,
    }
    return table


def _nested(shape: list[int], make: Callable[[], Any]) -> Any:
    return make() if not shape else [_nested(shape[1:], make) for _ in range(shape[0])]


def _moved(torch: Any, function: Any, args: Any, named: dict[str, Any]) -> Any:
    """`to`, `cuda`, `cpu`: C++ takes every fake tensor to be on the host, so moves are decided here."""
    given, rest = args[0], list(args[1:])
    target, named = named.get("device"), {key: value for key, value in named.items() if key != "device"}
    if function is torch.Tensor.cpu:
        target, rest = torch.device("cpu"), rest[1:]
    elif function is torch.Tensor.cuda:
        target, rest = indexed(torch, rest[0] if rest and rest[0] is not None else "cuda"), rest[1:]
        named = {key: value for key, value in named.items() if key == "non_blocking"}
    elif rest and isinstance(rest[0], torch.Tensor):
        target, rest = rest[0].device, [rest[0].dtype, *rest[1:]]
    elif rest and (rest[0] is None or isinstance(rest[0], (str, torch.device, int))):
        target, rest = rest[0], rest[1:]
    target = torch.device(target) if isinstance(target, str) else target
    numbered = isinstance(target, torch.device) and target.type == "cpu" and target.index is not None
    target = indexed(torch, target)
    if not hasattr(given, "fake_mode") and not _is_plain(torch, given):
        there = [] if target is None or given.device == target else [target]
        return function(given, *there, *rest, **named) if there or rest or named else given
    dtype = named.get("dtype") or next((value for value in rest if isinstance(value, torch.dtype)), None)
    if target is None or (given.device == target and not numbered):  # PyTorch copies from `cpu` to `cpu:0`
        more = {key: named[key] for key in ("copy", "memory_format") if named.get(key) is not None}
        return torch.Tensor.to(given, dtype=dtype or given.dtype, **more) if dtype is not None or more else given
    blocking = bool(named.get("non_blocking", next((value for value in rest if isinstance(value, bool)), False)))
    return torch.ops.aten._to_copy.default(given, device=target, dtype=dtype, non_blocking=blocking)


def _is_plain(torch: Any, tensor: Any) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter)
