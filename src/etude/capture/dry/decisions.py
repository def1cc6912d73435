"""Operators that a dry run answers or changes itself: shapes that depend on numbers, tensors that C++ makes."""

from typing import Any

from etude.capture.dry.buckets import Buckets
from etude.capture.dry.fake_results import FakeResults
from etude.capture.dry.numbers import Numbers
from etude.capture.dry.values import Answers

_MADE = ("zeros", "ones", "empty", "full", "arange", "empty_strided", "scalar_tensor")
_MOVES = ("to", "cpu", "tensor", "as_tensor", "asarray", "numpy", "tolist", "type", "copy_")
FACTORIES = frozenset(f"aten::{name}" for name in (*_MADE, *(f"new_{name}" for name in _MADE)))


class Decisions:
    """What is done with an operator before it is seen."""

    def __init__(
        self, torch: Any, answers: Answers, buckets: Buckets, called: list[Any], numbers: Numbers, results: FakeResults
    ) -> None:
        """`called`: functions of PyTorch that the program's Python is in."""
        self._torch, self._answers, self._buckets, self._called = torch, answers, buckets, called
        self._numbers, self._results = numbers, results
        aten = torch.ops.aten
        self._counted: dict[Any, Any] = {
            aten.nonzero.default: self._nonzero,
            aten.masked_select.default: self._selected,
            aten.bincount.default: self._bincount,
            aten.histc.default: self._histogram,
            aten._local_scalar_dense.default: self._number,
        }

    def answer(self, function: Any, args: Any, kwargs: Any) -> tuple[Any] | None:
        """The result of an operator that is not seen, or None."""
        return self._buckets.answer(function, args, kwargs)

    def result(self, function: Any, args: Any, kwargs: Any) -> Any:
        """The result of one that is seen."""
        known = self._numbers.asked(function, args, kwargs)
        if known is not None:
            return known[0]
        counted = self._counted.get(function)
        if counted is not None:
            return counted(*args, **kwargs)
        found = self._found(function, args, kwargs)
        self._numbers.follow(function, args, kwargs, found)
        return found

    def _found(self, function: Any, args: Any, kwargs: Any) -> Any:
        name = function._schema.name
        if name in FACTORIES and self._of_device(name, kwargs):
            kwargs = {**kwargs, "device": self._torch.device("cuda", self._torch.cuda.current_device())}
        if name == "aten::_to_copy" and self._of_cast(args[0], kwargs):
            kwargs = {**kwargs, "device": None}
        if name == "aten::_grouped_mm" and args[0].dtype != self._torch.bfloat16:
            return self._grouped(*args)
        return self._results.call(function, args, kwargs)

    def _of_device(self, name: str, kwargs: Any) -> bool:
        """Whether C++ makes a tensor beside others: it takes all of them to be on the host."""
        device = kwargs.get("device")
        if not self._torch.cuda.is_available() or device is None or device.type != "cpu":
            return False
        made = name.removeprefix("aten::").removeprefix("new_")
        return not any(getattr(one, "__name__", "") in (made, f"new_{made}", "tensor") for one in self._called)

    def _of_cast(self, given: Any, kwargs: Any) -> bool:
        """Whether C++ changes a type and names the host, where it takes the tensor to be: `softmax(..., dtype=...)`."""
        device = kwargs.get("device")
        if device is None or device.type != "cpu" or given.device.type != "cuda":
            return False
        return not any(getattr(one, "__name__", "") in _MOVES for one in self._called)

    def _nonzero(self, given: Any) -> Any:
        count = self._answers.count(given.numel())
        return given.new_empty((count, given.dim()), dtype=self._torch.int64)

    def _selected(self, given: Any, mask: Any) -> Any:
        return given.new_empty((self._answers.count(max(given.numel(), mask.numel())),))

    def _bincount(self, given: Any, weights: Any = None, minlength: int = 0) -> Any:
        kind = self._torch.int64 if weights is None else weights.dtype
        return given.new_empty((minlength or self._answers.count(1 << 40),), dtype=kind)

    def _number(self, given: Any) -> Any:
        """C++ takes the number of a tensor where an operator wants a plain one."""
        if self._numbers.of(given) is not None:
            return self._numbers.value(given, self._torch.Tensor.item)
        self._answers.read(given)
        found = self._answers.of(given, kind="item")
        return float(found) if isinstance(found, float) else found

    def _histogram(self, given: Any, bins: int = 100, *_: Any, **__: Any) -> Any:
        """A CUDA device counts whole numbers as well, which the host does not."""
        return given.new_empty((bins,))

    def _grouped(self, a: Any, b: Any, ends: Any = None, *rest: Any) -> Any:
        """Groups of matrix products: of parts of the rows or columns of one or both, or of a batch."""
        batch = {(2, 2): (len(ends),) if ends is not None else (), (3, 3): (a.shape[0],)}.get((a.dim(), b.dim()), ())
        return a.new_empty((*batch, a.shape[-2], b.shape[-1]))
