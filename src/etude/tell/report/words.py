"""Figures as people read them."""

from __future__ import annotations

import re

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
