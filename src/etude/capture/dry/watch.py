"""Writes down every operator of a dry run: what it is given, what it makes, on which stream, in which module."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from etude.capture.dry.communication import Communication, communication_of
from etude.capture.dry.fakes import device_answered, device_asked
from etude.capture.dry.in_place import InPlace
from etude.capture.dry.storages import TensorStorages
from etude.capture.dry.tensors import tensors_in

TYPE_NAMES = {
    "float64": "double",
    "float32": "float",
    "bfloat16": "c10::BFloat16",
    "float16": "c10::Half",
    "int64": "long int",
    "int32": "int",
    "int16": "short int",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "bool",
    "float8_e4m3fn": "c10::Float8_e4m3fn",
    "float8_e5m2": "c10::Float8_e5m2",
    "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
}
"""Types as PyTorch's own execution traces spell them."""

TEXTS = ("name", "in_shapes", "in_types", "in_values", "in_strides", "out_shapes", "out_types", "module", "phase")
COLUMNS = (*TEXTS, "step", "stream", "place", "works", "reads", "writes", "after", "forward", "communication")
NO_WORK = frozenset(
    {
        "aten::empty",
        "aten::empty_strided",
        "aten::empty_like",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::lift_fresh",
        "aten::_unsafe_view",
        "aten::_local_scalar_dense",
        "aten::resize_",
        "aten::set_",
        "aten::is_same_size",
        "aten::record_stream",
        "aten::is_pinned",
        "aten::_reshape_alias",
        "aten::alias",
        "aten::detach_",
    }
)
"""Operators that only make or look at a tensor."""


class NumberedTexts:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._numbers: dict[Any, int] = {}

    def put(self, key: Any, make: Callable[[], str] | None = None) -> int:
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.words)
            self.words.append(key if make is None else make())
        return found


class Watch:
    """What was seen, and the state that decides where an operator belongs."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.storages = TensorStorages()
        self.words = NumberedTexts()
        self.rows: list[tuple[Any, ...]] = []
        self.groups: dict[str, list[int]] = {}
        self.made_groups: list[list[int]] = []
        """Members of every group that the program made, also of those without this rank."""
        self.stream = 0
        self.step = 0
        self.step_events: list[int] = []
        """How many rows and events of memory there were at the end of each step, in turns."""
        self.modules: list[str] = []
        self.optimizing = 0
        self.tensor_type = torch.Tensor
        self.last_of: dict[int, int] = {}
        self._pending: dict[int, set[int]] = {}
        self._row_of_sequence: dict[int, int] = {}
        self._views: dict[Any, bool] = {}
        self._lanes: dict[str, int] = {}
        self._writers: dict[int, int] = {}
        self.work_rows: dict[int, tuple[Any, int]] = {}
        self.reduction = ""
        """What the collective that Python is calling reduces by, such as `SUM`."""

    # -- what the program says -----------------------------------------------------------------------------------------

    def wait(self, row: int, stream: int | None = None) -> None:
        """What comes next on a stream waits for a row; on the current one if none is named, or on the host where the
        row's tensors are there."""
        if row >= 0:
            here = self.stream if self.rows[row][PLACE] else HOST
            self._pending.setdefault(here if stream is None else stream, set()).add(row)

    def end_step(self) -> None:
        self.step += 1
        self.step_events += [len(self.rows), len(self.storages.events) // 2]

    def read(self, tensor: Any) -> None:
        """The program asks for a number of a tensor: the host waits for the device."""
        if tensor.device.type == "cuda":
            self.host_waits("aten::_local_scalar_dense", [self.writer(tensor), self.last_of.get(self.stream, -1)])

    def host_waits(self, name: str, rows: Iterable[int]) -> None:
        """The host waits for rows in a call of this name: what it launches later comes after them."""
        row, none = len(self.rows), self.words.put("[]")
        after = sorted({*rows, self.last_of.get(HOST, -1)} - {-1})
        self.last_of[HOST] = row
        module, _ = self._place(row)
        texts = (self.words.put(name), *[none] * (MODULE - 1), module, self.words.put(self.phase()))
        self.rows.append((*texts, self.step, HOST, 0, 1, [], [], after, -1, None))

    def phase(self) -> str:
        if self.optimizing:
            return "optimizer"
        if self._torch._C._current_graph_task_id() < 0:
            return "forward"
        return "recompute" if self.modules else "backward"

    # -- an operator ---------------------------------------------------------------------------------------------------

    def operator(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        communication = communication_of(self._torch, function, args, kwargs, result)
        if communication is not None and communication.waits_only:
            for tensor in communication.reads:
                self.wait(self.writer(tensor))
            return
        arguments = _arguments(function, args, kwargs)
        given = [tensor for _, value in arguments for tensor in tensors_in(value, self.tensor_type)]
        made = tensors_in(result, self.tensor_type)
        row = len(self.rows)
        on_device = any(t.device.type not in ("cpu", "meta") for t in (*made, *given))
        reads = [self.storages.number(t, self.stream, row) for t in given]
        written = [
            t for name, value in arguments if name in _written(function) for t in tensors_in(value, self.tensor_type)
        ]
        writes = [self.storages.number(t, self.stream, row) for t in written]
        writes += [self.storages.number(t, self.stream, row) for t in made]
        if communication is not None:
            writes += [self.storages.number(t, self.stream, row) for t in communication.writes]
        works = communication is not None or self._works(function)
        after, stream = self._order(row, communication, works, on_device)
        module, forward = self._place(row)
        self._writers.update(dict.fromkeys(writes, row) if works else {})
        self.rows.append(
            (
                self.words.put(function._schema.name),
                *self._texts(arguments),
                self.words.put(
                    ("s", *(tuple(t.shape) for t in made)), lambda: json.dumps([list(t.shape) for t in made])
                ),
                self.words.put(("t", *(t.dtype for t in made)), lambda: json.dumps([_type(t) for t in made])),
                module,
                self.words.put(self.phase()),
                self.step,
                stream,
                int(on_device),
                int(works),
                list(dict.fromkeys(reads)),
                list(dict.fromkeys(writes)),
                after,
                forward,
                None if communication is None else self._communication(communication),
            )
        )

    def _order(
        self, row: int, communication: Communication | None, works: bool, on_device: bool
    ) -> tuple[list[int], int]:
        """(The rows that it waits for, its stream.) A communication has a stream of its group, and begins after what
        its caller's stream did before."""
        stream = self.stream if on_device else HOST
        if not works:
            return [], stream
        after = self._pending.pop(stream, set())
        if communication is not None:
            after.add(self.last_of.get(stream, -1))
            if after - {-1}:
                self._pending[stream] = set(after - {-1}) - {self.last_of.get(stream, -1)}  # its caller still waits
            stream = self._lanes.setdefault(communication.group, FIRST_LANE + len(self._lanes))
        after.add(self.last_of.get(stream, -1))
        self.last_of[stream] = row
        return sorted(after - {-1}), stream

    def _works(self, function: Any) -> bool:
        known = self._views.get(function)
        if known is None:
            schema = function._schema
            views = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
            space = schema.name.partition("::")[0]
            known = self._views[function] = not (views or schema.name in NO_WORK or space in ("prim", "profiler"))
        return known

    def writer(self, tensor: Any) -> int:
        """The row that wrote last to a tensor's storage, -1 if there is none."""
        number = self.storages.seen(tensor)
        return -1 if number is None else self._writers.get(number, -1)

    def _place(self, row: int) -> tuple[int, int]:
        """(The module, the forward row of a backward one, -1 if unknown.)"""
        autograd = self._torch._C
        if not self.modules and autograd._current_graph_task_id() >= 0:
            node = autograd._current_autograd_node()
            forward = self._row_of_sequence.get(node._sequence_nr(), -1) if node is not None else -1
            return (self.rows[forward][MODULE] if forward >= 0 else self.words.put("")), forward
        if self._torch.is_grad_enabled():
            self._row_of_sequence[autograd._autograd._get_sequence_nr()] = row
        return self.words.put(self.modules[-1] if self.modules else ""), -1

    def _texts(self, arguments: list[tuple[str, Any]]) -> tuple[int, int, int, int]:
        values = [value for _, value in arguments]
        put, tensor = self.words.put, self.tensor_type
        key = tuple(_key(value, tensor) for value in values)
        return (
            put(("in s", key), lambda: json.dumps([_shape(v, tensor) for v in values])),
            put(("in t", key), lambda: json.dumps([_type(v) for v in values])),
            put(("v", key), lambda: json.dumps([_value(v, tensor) for v in values])),
            put(("d", key), lambda: json.dumps([_stride(v, tensor) for v in values])),
        )

    def _communication(self, found: Communication) -> dict[str, Any]:
        self.groups.setdefault(found.group, list(found.members))
        return found.to_dict()


HOST = -1
"""The stream of operators whose tensors are on the host."""
FIRST_LANE = 1000
"""Streams from here on are those of groups."""
MODULE, PLACE = COLUMNS.index("module"), COLUMNS.index("place")


def watching(torch: Any, watch: Watch, decisions: Any, in_place: InPlace) -> Any:
    """The mode that lets `watch` see operators."""
    from torch.utils._python_dispatch import TorchDispatchMode

    fake, asked = __import__("torch._subclasses.fake_tensor", fromlist=["FakeTensor"]).FakeTensor, device_asked(torch)
    plain = {torch.Tensor, torch.nn.Parameter, fake}

    class Watching(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is asked:
                return device_answered(torch, args)
            if any(kind not in plain for kind in types):  # a class of its own makes plain operators of it
                return NotImplemented
            answered = decisions.answer(function, args, kwargs or {})
            if answered is not None:
                return answered[0]
            if is_composite(torch, function):
                with self:
                    return function.decompose(*args, **(kwargs or {}))
            function, args, kwargs = in_place.call(function, args, kwargs or {}, len(watch.rows), watch.writer)
            result = decisions.result(function, args, kwargs)
            if in_place.learning:
                return result
            watch.operator(function, args, kwargs, result)
            return with_result(torch, result, args) if function._schema.name == "c10d::allreduce_" else result

    return Watching()


def is_composite(torch: Any, function: Any) -> bool:
    """Whether PyTorch makes other operators of it before it comes to a kernel. A mode sees it nevertheless where
    gradients are off altogether, as in `inference_mode`."""
    found = _COMPOSITE.get(function)
    if found is None:
        has, name = torch._C._dispatch_has_kernel_for_dispatch_key, function.name()
        found = has(name, "CompositeImplicitAutograd") and not has(name, "CPU")
        _COMPOSITE[function] = found
    return found


_COMPOSITE: dict[Any, bool] = {}


def with_result(torch: Any, result: Any, args: Any) -> Any:
    """The same with a work that has its tensors as a result, which data parallelism in C++ asks for."""
    future = torch.futures.Future()
    future.set_result(list(args[0]))
    work = torch._C._distributed_c10d._create_work_from_future(future)
    return result[0], work.boxed()


# -- arguments ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WrappedNumber:
    """A number of the program where an operator takes a tensor: PyTorch makes one of it."""

    value: bool | int | float | complex


def _arguments(function: Any, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    arguments = function._schema.arguments
    found = [(argument.name, _wrapped(argument, value)) for argument, value in zip(arguments, args, strict=False)]
    found += [(one.name, _wrapped(one, kwargs[one.name])) for one in arguments[len(args) :] if one.name in kwargs]
    return found


def _wrapped(argument: Any, value: Any) -> Any:
    if isinstance(value, (bool, int, float, complex)) and argument.type.kind() == "TensorType":
        return WrappedNumber(value)
    return value


def _written(function: Any) -> set[str]:
    known = _WRITTEN.get(function)
    if known is None:
        arguments = function._schema.arguments
        known = {a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write}
        _WRITTEN[function] = known
    return known


_WRITTEN: dict[Any, set[str]] = {}


def _key(value: Any, tensor: Any) -> Any:
    if isinstance(value, tensor):
        return tuple(value.shape), tuple(value.stride()), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(_key(item, tensor) for item in value)
    return (type(value).__name__, str(value))


def _shape(value: Any, tensor: Any) -> Any:
    if isinstance(value, tensor):
        return list(value.shape)
    if isinstance(value, (list, tuple)) and tensors_in(value, tensor):
        return [_shape(item, tensor) for item in value]
    return []


def _stride(value: Any, tensor: Any) -> Any:
    if isinstance(value, tensor):
        return list(value.stride())
    if isinstance(value, (list, tuple)) and tensors_in(value, tensor):
        return [_stride(item, tensor) for item in value]
    return []


def _type(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    if dtype is not None and hasattr(value, "shape"):
        name = str(dtype).removeprefix("torch.")
        return f"Tensor({TYPE_NAMES.get(name, name)})"
    if isinstance(value, (list, tuple)):
        return f"GenericList[{','.join(_type(item) for item in value)}]"
    if isinstance(value, WrappedNumber):
        return _WRAPPED_TYPES[type(value.value)]
    return {bool: "Bool", int: "Int", float: "Double", str: "String", type(None): "None"}.get(type(value), "None")


_WRAPPED_TYPES = {
    bool: "Tensor(bool)",
    int: "Tensor(long int)",
    float: "Tensor(double)",
    complex: "Tensor(c10::complex<double>)",
}


def _value(value: Any, tensor: Any) -> Any:
    if isinstance(value, tensor):
        return []
    if isinstance(value, WrappedNumber):
        return _value(value.value, tensor)
    if isinstance(value, (list, tuple)):
        return [_value(item, tensor) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return value if isinstance(value, float) and value - value == 0 else str(value)
