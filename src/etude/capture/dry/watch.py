"""Writes down every operator of a dry run: what it is given, what it makes, on which stream, in which module."""

from collections.abc import Iterable
from typing import Any

from etude.capture.dry.communication import Communication, communication_of
from etude.capture.dry.fakes import device_answered, device_asked
from etude.capture.dry.in_place import InPlace
from etude.capture.dry.storages import TensorStorages
from etude.capture.dry.tensors import tensors_in
from etude.capture.dry.texts import OperatorFacts, OperatorTexts, operator_facts, operator_values

TEXTS = ("name", "in_shapes", "in_types", "in_values", "in_strides", "out_shapes", "out_types", "module", "phase")
COLUMNS = (*TEXTS, "step", "stream", "place", "works", "reads", "writes", "after", "forward", "communication")


class Watch:
    """What was seen, and the state that decides where an operator belongs."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.storages = TensorStorages()
        self.words = OperatorTexts(torch)
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
        self.looks_away = 0
        """Above 0 operators are not those of the program."""
        self.tensor_type = torch.Tensor
        self.last_of: dict[int, int] = {}
        self._pending: dict[int, set[int]] = {}
        self._row_of_sequence: dict[int, int] = {}
        self._facts: dict[Any, OperatorFacts] = {}
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

    def join_steps(self) -> None:
        """All steps so far were parts of the first, which ends now."""
        self.rows = [(*row[:STEP], 0, *row[STEP + 1 :]) for row in self.rows]
        self.step, self.step_events = 0, []
        self.end_step()

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
        with self._torch._C.DisableTorchFunction():  # to look at a tensor is no call of the program
            self._operator(function, args, kwargs, result)

    def _operator(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        facts = self._facts.get(function)
        if facts is None:
            facts = self._facts[function] = operator_facts(function)
        communication = communication_of(self._torch, function, args, kwargs, result) if facts.talks else None
        if communication is not None and communication.waits_only:
            for tensor in communication.reads:
                self.wait(self.writer(tensor))
            return
        values, places = operator_values(facts, args, kwargs)
        given: list[Any] = []
        texts = self.words.put(facts.name), *self.words.given(values, given)
        made = tensors_in(result, self.tensor_type)
        row, number, stream = len(self.rows), self.storages.number, self.stream
        on_device = any(t.device.type not in ("cpu", "meta") for t in (*made, *given))
        reads = [number(tensor, stream, row) for tensor in given]
        written = facts.written and [
            value for value, place in zip(values, places, strict=True) if place in facts.written
        ]
        writes = [number(tensor, stream, row) for tensor in tensors_in(written, self.tensor_type)] if written else []
        writes += [number(tensor, stream, row) for tensor in made]
        if communication is not None:
            writes += [number(tensor, stream, row) for tensor in communication.writes]
        works = communication is not None or facts.works
        after, stream = self._order(row, communication, works, on_device)
        module, forward = self._place(row)
        if works:
            self._writers.update(dict.fromkeys(writes, row))
        self.rows.append(
            (
                *texts,
                *self.words.made(made),
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

    def _communication(self, found: Communication) -> dict[str, Any]:
        self.groups.setdefault(found.group, list(found.members))
        return found.to_dict()


HOST = -1
"""The stream of operators whose tensors are on the host."""
FIRST_LANE = 1000
"""Streams from here on are those of groups."""
MODULE, PLACE, STEP = (COLUMNS.index(name) for name in ("module", "place", "step"))


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
            if in_place.learning or watch.looks_away:
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
