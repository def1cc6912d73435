"""A communication as requested by a program, whatever recorded it: names, data types, sizes, and how it is split."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from etude.model.schema import UNKNOWN, Collective, Kind

Sizes = list[int | list[int]]
"""Bytes of the tensors of one side: one entry per tensor, a list for each list of a list of lists."""

_TYPES: Final = (
    (r"all_?reduce", Kind.COLL, Collective.ALL_REDUCE),
    (r"reduce_?scatter_block", Kind.COLL, Collective.REDUCE_SCATTER_BLOCK),
    (r"reduce_?scatter", Kind.COLL, Collective.REDUCE_SCATTER),
    (r"reduce", Kind.COLL, Collective.REDUCE),
    (r"all_?gather", Kind.COLL, Collective.ALL_GATHER),
    (r"gather", Kind.COLL, Collective.GATHER),
    (r"scatter", Kind.COLL, Collective.SCATTER),
    (r"broadcast", Kind.COLL, Collective.BROADCAST),
    (r"all_?to_?all", Kind.COLL, Collective.ALL_TO_ALL),
    (r"(?:monitored_)?barrier", Kind.COLL, Collective.BARRIER),
    (r"send", Kind.SEND, Collective.NONE),
    (r"recv", Kind.RECV, Collective.NONE),
)
_NAME: Final = re.compile(
    r"(?:c10d::|nccl:|gloo:|_?c10d_functional(?:_autograd)?::)?_?(?:"
    + "|".join(f"(?P<t{i}>{pattern})" for i, (pattern, _, _) in enumerate(_TYPES))
    + r")(?:v|_.*| .*)?"
)
_BARRIER_AS_REDUCE: Final = "all_reduce_barrier"
LARGEST: Final = 1 << 50
"""More elements or bytes than this are a mistake, not a tensor."""

_DTYPES: Final = {
    "double": ("float64", 8),
    "float": ("float32", 4),
    "half": ("float16", 2),
    "bfloat16": ("bfloat16", 2),
    "float8_e4m3fn": ("float8_e4m3fn", 1),
    "float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
    "float8_e5m2": ("float8_e5m2", 1),
    "float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
    "float8_e8m0fnu": ("float8_e8m0fnu", 1),
    "long": ("int64", 8),
    "long int": ("int64", 8),
    "int": ("int32", 4),
    "short": ("int16", 2),
    "short int": ("int16", 2),
    "char": ("int8", 1),
    "signed char": ("int8", 1),
    "byte": ("uint8", 1),
    "unsigned char": ("uint8", 1),
    "uint16": ("uint16", 2),
    "unsigned short": ("uint16", 2),
    "uint32": ("uint32", 4),
    "unsigned int": ("uint32", 4),
    "uint64": ("uint64", 8),
    "unsigned long": ("uint64", 8),
    "bool": ("bool", 1),
    "complexfloat": ("complex64", 8),
    "complex<float>": ("complex64", 8),
    "complexdouble": ("complex128", 16),
    "complex<double>": ("complex128", 16),
}


def type_of(name: Any) -> tuple[Kind, Collective] | None:
    """The type of an operator or a recorded collective: `c10d::_allgather_base_`, `nccl:send 0->1`, `all_to_allv`, ...
    None if it is not a communication: `wait`, `init`, other operators."""
    if not isinstance(name, str):
        return None
    if name.endswith(_BARRIER_AS_REDUCE):
        return Kind.COLL, Collective.BARRIER
    match = _NAME.fullmatch(name)
    if match is None or match.lastgroup is None:
        return None
    _, kind, collective = _TYPES[int(match.lastgroup[1:])]
    return kind, collective


def dtype_of(name: Any) -> tuple[str, int]:
    """(data type, bytes of an element) of a name that PyTorch records: `Float`, `c10::BFloat16`, `long int`. Empty and
    0 if unknown."""
    return _DTYPES.get(name.strip().removeprefix("c10::").lower(), ("", 0)) if isinstance(name, str) else ("", 0)


def small(value: Any) -> int:
    """A rank, a group size or a tag: a plausible number, -1 for all else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 1 << 31 else -1


def numbers(value: Any) -> list[int] | None:
    """Splits: a list of plausible numbers, None for all else."""
    fits = isinstance(value, list) and all(isinstance(n, int) and 0 <= n < LARGEST for n in value)
    return value if fits else None


@dataclass(slots=True)
class Call:
    """One call of one rank. Ranks in `root` and `peer` count within the group; -1: unknown."""

    name: str
    kind: Kind
    collective: Collective
    order: int
    """Sort key of the calls of one source: start in ns, or id of the node."""
    thread: int
    host: int = -1
    event: int = -1
    dtype: str = ""
    inputs: Sizes | None = None
    outputs: Sizes | None = None
    """None: not recorded."""
    in_split: list[int] | None = None
    out_split: list[int] | None = None
    """As recorded: elements or rows for each member; None or empty: in equal parts."""
    group: str | None = None
    members: tuple[int, ...] | None = None
    size: int = 0
    """Ranks in the group; 0: unknown."""
    root: int = -1
    peer: int = -1
    src: int = -1
    dst: int = -1
    """Global ranks, if recorded as such."""
    tag: int = -1
    sequence: int = UNKNOWN
    recorded: bool = False
    """Whether `record_param_comms` describes it."""
    rf_ids: list[int] = field(default_factory=list)
    work: list[int] = field(default_factory=list)
    """Rows of the device events that ran it: kernels, or the events of gloo's threads."""
    work_host: list[int] = field(default_factory=list)
    """Rows of the host trace for the work of gloo."""

    @property
    def is_coalesced(self) -> bool:
        return "coalesced" in self.name

    def fill(self, other: Call) -> None:
        """Takes over what only the other source knows."""
        for name in ("inputs", "outputs", "in_split", "out_split", "group", "members"):
            if getattr(self, name) is None:
                setattr(self, name, getattr(other, name))
        for name in ("host", "event", "root", "peer", "src", "dst", "tag", "sequence"):
            if getattr(self, name) < 0:
                setattr(self, name, getattr(other, name))
        self.dtype, self.size = self.dtype or other.dtype, self.size or other.size
        self.recorded |= other.recorded
        self.work += [row for row in other.work if row not in self.work]
        self.work_host += [row for row in other.work_host if row not in self.work_host]


@dataclass(frozen=True, slots=True)
class CallPart:
    """One node: a call, or one tensor of a coalesced call. Bytes; splits are bytes for each member."""

    in_bytes: int
    out_bytes: int
    in_split: tuple[int, ...] = ()
    out_split: tuple[int, ...] = ()


def total(sizes: Sequence[int | list[int]] | None) -> int:
    """Bytes of one side, UNKNOWN if not recorded."""
    if sizes is None:
        return UNKNOWN
    return sum(sum(s) if isinstance(s, list) else s for s in sizes)


def tensor_sizes(value: Any) -> Sizes:
    """Bytes of the tensors in a recorded value `[id, storage, offset, elements, width, device]`, or lists of such."""
    if _is_tensor(value):
        return [value[3] * value[4]]
    found: Sizes = []
    for entry in value if isinstance(value, list) else ():
        if _is_tensor(entry):
            found.append(entry[3] * entry[4])
        elif isinstance(entry, list):
            found.append([t[3] * t[4] for t in entry if _is_tensor(t)])
    return found


def _is_tensor(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 6
        and isinstance(value[5], str)
        and all(isinstance(number, int) for number in value[3:5])
        and 0 <= value[3] < LARGEST
        and 0 <= value[4] <= 64
    )


def parts(call: Call) -> list[CallPart]:
    """The nodes of a call: one, or one for each tensor if several were coalesced."""
    if call.collective == Collective.BARRIER:
        return [CallPart(0, 0)]
    inputs, outputs = call.inputs, call.outputs
    if call.is_coalesced and inputs and len(inputs) > 1:
        if outputs is None or len(outputs) != len(inputs):
            outputs = [_other_side(call, total([size])) for size in inputs]
        return [CallPart(total([i]), total([o])) for i, o in zip(inputs, outputs, strict=True)]
    in_bytes, out_bytes = total(inputs), total(outputs)
    if out_bytes == UNKNOWN and in_bytes != UNKNOWN:
        out_bytes = _other_side(call, in_bytes)
    if in_bytes == UNKNOWN and out_bytes != UNKNOWN and call.kind != Kind.COLL:
        in_bytes = out_bytes
    splits = [_split(call, *side) for side in ((inputs, in_bytes, call.in_split), (outputs, out_bytes, call.out_split))]
    return [CallPart(in_bytes, out_bytes, *splits)]


def _other_side(call: Call, in_bytes: int) -> int:
    """Output bytes from input bytes, if the collective determines them."""
    if call.collective in (Collective.NONE, Collective.ALL_REDUCE, Collective.REDUCE, Collective.BROADCAST):
        return in_bytes
    if call.size and call.collective == Collective.ALL_GATHER:
        return in_bytes * call.size
    if call.size and call.collective in (Collective.REDUCE_SCATTER, Collective.REDUCE_SCATTER_BLOCK):
        return in_bytes // call.size
    if call.collective == Collective.ALL_TO_ALL and not call.in_split and not call.out_split:
        return in_bytes
    return UNKNOWN


def _split(call: Call, sizes: Sizes | None, whole: int, recorded: list[int] | None) -> tuple[int, ...]:
    """Bytes for each member of the group, if the program may give each a different share."""
    if call.kind != Kind.COLL or whole == UNKNOWN:
        return ()
    if recorded:
        units = sum(recorded)
        return tuple(share * whole // units if units else 0 for share in recorded)
    nested = sizes[0] if sizes and len(sizes) == 1 and isinstance(sizes[0], list) else sizes
    if nested and len(nested) > 1 and all(isinstance(size, int) for size in nested):
        return tuple(size for size in nested if isinstance(size, int))
    if call.collective == Collective.ALL_TO_ALL and call.size:
        return (whole // call.size,) * call.size
    return ()
