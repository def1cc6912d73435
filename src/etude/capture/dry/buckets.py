"""Data parallelism in C++ sorts its buckets again after the first step, by numbers that it writes into tensors itself:
these tensors are real."""

from typing import Any

from etude.capture.dry.tensors import tensors_in


class Buckets:
    """Answers operators while buckets are sorted. `real` is a context in which tensors have numbers."""

    def __init__(self, torch: Any, real: Any) -> None:
        self._torch, self._real, self._sorting = torch, real, False
        reducer: Any = getattr(torch.distributed, "Reducer", None)
        original = getattr(reducer, "_rebuild_buckets", None)
        if original is None:
            return

        def rebuild(made: Any) -> Any:
            self._sorting = True
            try:
                return original(made)
            finally:
                self._sorting = False

        reducer._rebuild_buckets = rebuild

    def answer(self, function: Any, args: Any, kwargs: Any) -> tuple[Any] | None:
        """The result of an operator on numbers, or None: then it is one of the program's."""
        if not self._sorting:
            return None
        given = tensors_in([*args, *kwargs.values()], self._torch.Tensor)
        numbers = function._schema.name == "aten::empty" and kwargs.get("dtype") == self._torch.int32
        if not numbers and (not given or any(hasattr(tensor, "fake_mode") for tensor in given)):
            return None
        with self._real():
            return (function(*args, **kwargs),)
