"""Numbers of small tensors that a program computes from its own: from a list, a range, a constant.

Tensors of a dry run have no values. Some are known nevertheless: what is made from numbers of the program, and what is
computed from these alone. They are kept beside the tensor, on whatever device it is. What depends on weights or on
chance is not known, and no value is made up for it; numbers of other ranks are known where they are exchanged with ones
of this rank that are (`exchanges`).
"""

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from etude.capture.dry.communication import communication_of
from etude.capture.dry.exchanges import Exchanges
from etude.capture.dry.tensors import tensors_in

MOST_ELEMENTS = 1 << 18
"""Of a tensor whose numbers are kept."""
MADE = frozenset(f"aten::{name}" for name in ("zeros", "ones", "full", "arange", "scalar_tensor", "eye", "linspace"))
SHAPED = frozenset(
    f"aten::{name}" for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
)
"""Operators that take nothing of a tensor but its shape and type."""
UNDEFINED = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_")
)
DECIDED = {
    **dict.fromkeys(("aten::bitwise_or", "aten::logical_or", "aten::bitwise_or_", "aten::logical_or_"), True),
    **dict.fromkeys(("aten::bitwise_and", "aten::logical_and", "aten::bitwise_and_", "aten::logical_and_"), False),
}
"""Operators of two tensors that one of them decides, if all of it is so: that generation ends at its longest, say."""
_NAME = "_etude_numbers"


@dataclass(slots=True)
class Standing:
    """Whether numbers still hold, and which exchanges between ranks they came out of: all tensors of a storage share
    that."""

    holds: bool = True
    exchanges: set[int] = field(default_factory=set)


@dataclass(slots=True)
class KnownNumbers:
    """The numbers of a tensor."""

    real: Any
    standing: Standing = field(default_factory=Standing)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedFacts:
    """What an operator says of the numbers of its result."""

    is_plain: bool
    """No communication."""
    is_computed: bool
    """They follow from numbers that it is given, not from chance."""
    is_made: bool
    """It makes numbers of its own."""
    is_shaped: bool
    """Of what it is given only shapes count."""
    is_mutable: bool
    decided: bool | None
    """What one tensor decides for two, see `DECIDED`."""


class Numbers:
    """Follows operators with real numbers where all that they are given is known. `real` is a context in which tensors
    have numbers."""

    def __init__(self, torch: Any, real: Any, exchanges: Exchanges) -> None:
        self._torch, self._real, self._exchanges = torch, real, exchanges
        tags = torch.Tag
        self._asks = {tags.dynamic_output_shape, tags.data_dependent_output}
        self._chance = tags.nondeterministic_seeded
        self._asking: dict[Any, bool] = {}
        self._facts: dict[Any, FollowedFacts] = {}
        self.assumed: set[str] = set()

    def _facts_of(self, function: Any) -> FollowedFacts:
        found = self._facts.get(function)
        if found is None:
            name = function._schema.name
            found = self._facts[function] = FollowedFacts(
                is_plain=name.startswith("aten::"),
                is_computed=self._chance not in function.tags and name not in UNDEFINED,
                is_made=name in MADE or name.endswith("lift_fresh"),
                is_shaped=name in SHAPED,
                is_mutable=function._schema.is_mutable,
                decided=DECIDED.get(name),
            )
        return found

    def of(self, tensor: Any) -> Any:
        """A real tensor with the numbers, or None."""
        known = getattr(tensor, _NAME, None)
        if known is not None:
            return known.real if known.standing.holds else None
        plain = type(tensor) is self._torch.Tensor and tensor.device.type == "cpu"
        return tensor if plain and tensor.numel() <= MOST_ELEMENTS else None

    def value(self, tensor: Any, kind: Any) -> Any:
        """What `kind`, a function of a tensor, gives of the numbers; they are known."""
        self._exchanges.use(self._came_from([tensor]))
        with self._real():
            return kind(self.of(tensor))

    def exchanged(self, tensor: Any) -> bool:
        """Whether numbers are known only if other ranks have the same."""
        return bool(self._came_from([tensor]))

    def assume(self, tensor: Any, holds: bool) -> None:
        """That numbers are finite: what `torch.isnan`, `isinf` and `isfinite` say of each."""
        if tensor.numel() <= MOST_ELEMENTS and self.of(tensor) is None:
            with self._real():
                setattr(tensor, _NAME, KnownNumbers(self._torch.full(tensor.shape, holds)))
            self.assumed.add("every number that the program asks about is finite")

    def asked(self, function: Any, args: Any, kwargs: Any) -> tuple[Any] | None:
        """The result of an operator whose shape or value depends on numbers, where these are known."""
        asks = self._asking.get(function)
        if asks is None:
            asks = self._asking[function] = bool(self._asks & set(function.tags))
        if not asks:
            return None
        given = tensors_in([*args, *kwargs.values()], self._torch.Tensor)
        known = self._are_known(self._facts_of(function), given)
        computed = self._computed(function, args, kwargs) if known else None
        if computed is None:
            return None
        self._exchanges.use(self._came_from(given))
        return (self._made(computed[0], tensors_in(args, self._torch.Tensor)),)

    def follow(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Keeps the numbers of what an operator made."""
        facts = self._facts_of(function)
        if not facts.is_plain:
            self._follow_exchange(function, args, kwargs, result)
            return
        given = tensors_in([*args, *kwargs.values()] if kwargs else args, self._torch.Tensor)
        if self._are_known(facts, given):
            made = tensors_in(result, self._torch.Tensor)
            if all(tensor.numel() <= MOST_ELEMENTS for tensor in made):
                computed = self._computed(function, args, kwargs)
                if computed is not None:
                    self._keep(made, tensors_in(computed[0], self._torch.Tensor), [] if facts.is_shaped else given)
                    return
        if facts.is_mutable:
            self._forget(_written(function, args, kwargs, self._torch.Tensor))
        if facts.decided is not None:
            made = tensors_in(result, self._torch.Tensor)
            if len(made) == 1:
                self._decide(made[0], given, facts.decided)

    def _follow_exchange(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        call = communication_of(self._torch, function, args, kwargs, result)
        if call is not None and call.waits_only:
            for tensor in tensors_in(result, self._torch.Tensor):
                if tensor is not call.reads[0] and hasattr(call.reads[0], _NAME):
                    setattr(tensor, _NAME, getattr(call.reads[0], _NAME))
            return
        known = [self.of(tensor) for tensor in call.reads] if call is not None else []
        with self._real():
            combined = self._exchanges.combined(call, known) if call is not None else None
        if call is None or combined is None:
            self._forget(_written(function, args, kwargs, self._torch.Tensor))
            return
        here = self._torch.distributed.get_rank()
        came_from = self._came_from(call.reads) | ({len(self._exchanges.rows) - 1} if call.root != here else set())
        for tensor, real in zip(call.writes, combined, strict=True):
            self._write(tensor, real, came_from)

    def _write(self, tensor: Any, real: Any, came_from: set[int]) -> None:
        """New numbers of a tensor, which others of its storage see too."""
        known = getattr(tensor, _NAME, None)
        if known is not None and known.standing.holds:
            with self._real():
                known.real.copy_(real)
            known.standing.exchanges |= came_from
        elif known is None and tensor._base is None:
            setattr(tensor, _NAME, KnownNumbers(real, Standing(exchanges=came_from)))

    def _came_from(self, tensors: Any) -> set[int]:
        """The exchanges between ranks that numbers came out of."""
        known = (getattr(tensor, _NAME, None) for tensor in tensors)
        return {one for found in known if found is not None for one in found.standing.exchanges}

    def _decide(self, made: Any, given: list[Any], by: bool) -> None:
        """Keeps the result of a tensor that is known and one that is not, where the first decides."""
        decides = next((tensor for tensor in given if self.of(tensor) is not None), None)
        known = self.of(decides) if decides is not None else None
        if known is None or made.numel() > MOST_ELEMENTS or (by and made.dtype != self._torch.bool):
            return
        with self._real():
            if bool((known != 0).all() if by else (known == 0).all()):
                standing = Standing(exchanges=self._came_from([decides]))
                setattr(made, _NAME, KnownNumbers(self._torch.full(made.shape, by, dtype=made.dtype), standing))

    def _are_known(self, facts: FollowedFacts, given: list[Any]) -> bool:
        """Whether numbers of a result follow from numbers that are known."""
        if not facts.is_computed or not (given or facts.is_made):
            return False
        if not facts.is_shaped:
            for tensor in given:  # the first one decides nearly always
                if self.of(tensor) is None:
                    return False
        return True

    def _computed(self, function: Any, args: Any, kwargs: Any) -> tuple[Any] | None:
        shape_only = self._facts_of(function).is_shaped
        if "device" in kwargs:
            kwargs = {**kwargs, "device": self._torch.device("cpu")}
        with self._real(), self._torch.no_grad():
            args, kwargs = (self._with_numbers(value, shape_only=shape_only) for value in (args, kwargs))
            try:
                return (function(*args, **kwargs),)
            except Exception:  # the program's own call says what is wrong with it
                return None

    def _with_numbers(self, value: Any, *, shape_only: bool) -> Any:
        if isinstance(value, self._torch.Tensor):
            return self._torch.empty(value.shape, dtype=value.dtype) if shape_only else self.of(value)
        if isinstance(value, (list, tuple)):
            return type(value)(self._with_numbers(item, shape_only=shape_only) for item in value)
        if isinstance(value, dict):
            return {key: self._with_numbers(item, shape_only=shape_only) for key, item in value.items()}
        return value

    def _keep(self, made: list[Any], computed: list[Any], given: list[Any]) -> None:
        known = [found for tensor in given if (found := getattr(tensor, _NAME, None)) is not None]
        standings = {self._storage(found.real): found.standing for found in known}
        came_from = self._came_from(given)
        for tensor, real in zip(made, computed, strict=True):
            standing = standings.get(self._storage(real), Standing())
            standing.exchanges |= came_from
            if tensor.shape == real.shape and not any(tensor is one for one in given):
                real = real.clone() if real is tensor else real
                setattr(tensor, _NAME, KnownNumbers(real, standing))

    def _made(self, computed: Any, given: list[Any]) -> Any:
        if not isinstance(computed, self._torch.Tensor):
            if isinstance(computed, (list, tuple)):
                return type(computed)(self._made(one, given) for one in computed)
            return computed
        device = given[0].device if given else self._torch.device("cpu")
        found = self._torch.empty(computed.shape, dtype=computed.dtype, device=device)
        setattr(found, _NAME, KnownNumbers(computed, Standing(exchanges=self._came_from(given))))
        return found

    def _forget(self, tensors: list[Any]) -> None:
        for tensor in tensors:
            known = getattr(tensor, _NAME, None)
            if known is not None:
                known.standing.holds = False
            elif type(tensor) is self._torch.Tensor:
                setattr(tensor, _NAME, KnownNumbers(None, Standing(holds=False)))

    @staticmethod
    def _storage(real: Any) -> int:
        return int(real.untyped_storage()._cdata) if real is not None else 0


def show_known_as_real(torch: Any, numbers: Numbers) -> None:
    """Libraries ask whether a tensor is a fake one before they decide by its numbers: known ones are there."""
    package: Any = import_module("torch._subclasses")
    fake = package.FakeTensor

    class Asked(type):
        def __instancecheck__(cls, given: object) -> bool:
            return isinstance(given, fake) and numbers.of(given) is None

    package.FakeTensor = Asked("FakeTensor", (), {})


def _written(function: Any, args: Any, kwargs: Any, tensor: Any) -> list[Any]:
    """Tensors that an operator writes to. Schemas of communications do not say: all but their inputs."""
    arguments = function._schema.arguments
    named = [*zip(arguments, args, strict=False), *((one, kwargs[one.name]) for one in arguments if one.name in kwargs)]
    talks = function._schema.name.startswith(("c10d::", "_c10d_functional::"))
    return [
        found
        for argument, value in named
        if (argument.alias_info is not None and argument.alias_info.is_write)
        or (talks and not argument.name.startswith("input"))
        for found in tensors_in(value, tensor)
    ]
