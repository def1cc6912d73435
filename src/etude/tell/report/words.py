"""Figures as people read them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from etude.base.units import format_bandwidth, format_bytes, format_count, format_time


def time(ns: float) -> str:
    return format_time(round(ns)).replace("us", "µs")


def size(amount: float) -> str:
    return format_bytes(round(amount))


def rate(bytes_per_s: float) -> str:
    return format_bandwidth(round(bytes_per_s))


def flops(per_s: float) -> str:
    number, _, unit = format_count(round(per_s)).partition(" ")
    return f"{number} {unit}FLOP/s"


def percent(share: float) -> str:
    """A share of 1; small ones keep a digit, and a share below 1 is never shown as 100%."""
    value = 100 * share
    if 0 < value < 0.1:
        return "<0.1%"
    if 99.9 < value < 100:
        return ">99.9%"
    return f"{value:.1f}%" if 0 < value < 10 or 99 < value < 100 else f"{value:.0f}%"


def number(count: float) -> str:
    return f"{round(count):,}"


def percentage(value: float) -> str:
    """A share of 100."""
    return percent(value / 100)


def one_digit(value: float) -> str:
    return f"{value:.1f}%"


def whole_percentage(value: float) -> str:
    return f"{value:.0f}%"


def multiple(share: float) -> str:
    """A slow-down, as a share of the usual time."""
    return times(1 + share / 100)


def label(rank: int) -> str:
    """The number of a rank, without a separator."""
    return str(rank)


def rate_or_none(bytes_per_s: float) -> str:
    return rate(bytes_per_s) if bytes_per_s else "–"


def flops_or_none(per_s: float) -> str:
    return flops(per_s) if per_s else "–"


def hyphenated_name(name: str) -> str:
    """`all_reduce` as `all-reduce`."""
    return name.replace("_", "-")


def intensity(flops_a_byte: float) -> str:
    return f"{flops_a_byte:,.0f}" if flops_a_byte >= 100 else f"{flops_a_byte:.3g}"


def joules(value: float) -> str:
    for scale, unit in ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e3:.3g} mJ"


def watts(value: float) -> str:
    """Of one device."""
    return f"{value:.0f} W"


def seconds(value: float) -> str:
    """A time that is given in seconds."""
    return time(value * 1e9)


def energy(of_joules: float) -> str:
    """Of a run: kWh, or kJ where it is little."""
    return f"{of_joules / 3.6e6:.3g} kWh" if of_joules >= 3.6e5 else f"{of_joules / 1e3:.3g} kJ"


def each_second(value: float) -> str:
    return f"{value:.2f} per second"


def number_each_second(value: float) -> str:
    return f"{number(value)} /s"


def three_digits(value: float) -> str:
    return f"{value:.3g}"


def text(value: object) -> str:
    return str(value)


def capital(value: str) -> str:
    """With a capital first letter."""
    return f"{value[:1].upper()}{value[1:]}"


def operation(name: str) -> str:
    """A kernel or operator within a sentence."""
    return short(kernel(name))


def short_name(name: str) -> str:
    return short(name)


def shapes(value: str) -> str:
    return short(value, 80)


def operator(name: str) -> str:
    return short(title(name), 40)


def call(name: str) -> str:
    """A call on the critical path, whether with what it calls or not."""
    return name.removesuffix(", itself")


def times(ratio: float) -> str:
    return f"{ratio:.3g}x"


def verb(count: int, one: str = "is", many: str = "are") -> str:
    return one if count == 1 else many


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_SIGNATURE = re.compile(r"void |std::enable_if<|[A-Za-z_][\w:]*(<.*>)?\([A-Za-z].*\)$")
_GENERAL = re.compile(r"elementwise|reduce_kernel|multi_tensor_apply|^(device_)?[Kk]ernel2?$")
_INNER = re.compile(
    r"\b(\w+_kernel_(?:cuda|impl)|\w*[Ff]unctor\w*|\w+KernelImpl|\w+Ops?|\w+_cuda(?:_out)?|cutlass\w+)\b"
)
_WRAPPERS = {"AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor", "TensorIteratorOp", "ReduceOp", "gpu_kernel_impl"}


def kernel(name: str) -> str:
    """What a C++ signature is about: `void at::native::(anonymous namespace)::softmax<4, float>(float*)` is `softmax`.

    Kernels that run any function, element by element, are shown with theirs: `elementwise_kernel [sqrt_kernel_cuda]`.
    """
    if not _SIGNATURE.match(name):
        return name
    plain = (
        re.sub(r"^std::enable_if<.*>::type ", "", name)
        .removeprefix("void ")
        .replace("(anonymous namespace)::", "")
        .replace("<unnamed>::", "")
    )
    head = re.split(r"[<(]", plain, maxsplit=1)[0].strip().rpartition("::")[2]
    if not head:
        return name
    if not _GENERAL.search(head):
        return head
    inner = [word for word in _INNER.findall(plain[len(head) :]) if word not in _WRAPPERS and word != head]
    return f"{head} [{inner[0]}]" if inner else head


def title(name: str | None) -> str:
    """The name of a kernel or operator, for a table; its cell has all of it as a tooltip."""
    return kernel(name) if name else "(no name)"


def short(name: str, most: int = 60) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def tail(path: str, most: int) -> str:
    """The end of a path, which distinguishes it from others."""
    return path if len(path) <= most else f"…{path[1 - most :]}"


def named(items: list[str], most: int = 3) -> str:
    """`a, b and 4 more`."""
    shown = items[:most]
    if len(items) > most:
        return f"{', '.join(shown)} and {len(items) - most} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def with_sign(ns: float) -> str:
    """A difference of times."""
    return f"{'+' if ns > 0 else '−' if ns < 0 else ''}{time(abs(ns))}"


def calls(value: float) -> str:
    """How often something is done, per rank."""
    return number(value) if value == round(value) else f"{value:.1f}"


FORMS: Final[dict[str, Callable[[Any], str]]] = {
    one.__name__: one
    for one in (
        time,
        with_sign,
        calls,
        size,
        rate,
        flops,
        percent,
        percentage,
        one_digit,
        whole_percentage,
        number,
        times,
        multiple,
        label,
        rate_or_none,
        flops_or_none,
        hyphenated_name,
        intensity,
        joules,
        watts,
        seconds,
        energy,
        each_second,
        number_each_second,
        three_digits,
        text,
        capital,
        operation,
        short_name,
        shapes,
        operator,
        call,
        title,
    )
}
"""The formats of numbers on a page, by the name that a page gives; `plural:NOUN` is a number with its noun."""


def formatted_as(form: str, value: Any) -> str:
    """A value in one of the formats."""
    name, _, noun = form.partition(":")
    return plural(value, noun) if noun else FORMS[name](value)
