"""Large `.et` files, made in seconds, in the proportions of real ones.

    python tests/et_files.py pytorch 1000000 out/torch.et
    python tests/et_files.py stg 1000000 out/stg.et

`pytorch_like` follows what the official converter writes for a GPT training step on one GPU: nine attributes a node in
a fixed order, inputs and outputs as printed Python lists, a few hundred names, about 550 bytes a node. `stg_like`
follows the symbolic tensor graph generator: no inputs or outputs fields, string lists instead, about 320 bytes a node,
one node in nine a collective. The same seed gives the same bytes.

How: each sort of node is a small program (literal bytes, numbers from a slot, open and close a length) made once in
Python; NumPy fills the slots of a block of nodes; a kernel runs the programs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.kernels.compile import kernel

LITERAL, DECIMAL, VARINT, VARINTS, OPEN, CLOSE = range(6)
BLOCK = 16_384  # nodes at a time
Slots = NDArray[np.uint64]
Fill = Callable[[NDArray[np.int64], NDArray[np.int64], np.random.Generator], Slots]


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@dataclass
class Program:
    """How to write one sort of node. Steps are (what, a, b): see `_write`."""

    steps: list[tuple[int, int, int]] = field(default_factory=list)
    literals: bytearray = field(default_factory=bytearray)

    def put(self, raw: bytes) -> None:
        if self.steps and self.steps[-1][0] == LITERAL:
            _, at, size = self.steps[-1]
            self.steps[-1] = (LITERAL, at, size + len(raw))
        else:
            self.steps.append((LITERAL, len(self.literals), len(raw)))
        self.literals += raw

    def tag(self, number: int, wire: int) -> None:
        self.put(varint(number << 3 | wire))

    def constant(self, number: int, value: int) -> None:
        self.tag(number, 0)
        self.put(varint(value))

    def slot(self, number: int, slot: int) -> None:
        self.tag(number, 0)
        self.steps.append((VARINT, slot, 0))

    def many(self, number: int, slot: int, count_slot: int) -> None:
        """A packed field of as many numbers as the count slot says, at least one."""
        self.open(number)
        self.steps.append((VARINTS, slot, count_slot))
        self.close()

    def open(self, number: int) -> None:
        self.tag(number, 2)
        self.steps.append((OPEN, 0, 0))

    def close(self) -> None:
        self.steps.append((CLOSE, 0, 0))

    def text(self, number: int, *parts: str | tuple[int, int]) -> None:
        """A string; (slot, plus) in it is a decimal number."""
        if all(isinstance(p, str) for p in parts):
            raw = "".join(str(p) for p in parts).encode()
            self.tag(number, 2)
            self.put(varint(len(raw)) + raw)
            return
        self.open(number)
        for p in parts:
            if isinstance(p, str):
                self.put(p.encode())
            else:
                self.steps.append((DECIMAL, *p))
        self.close()

    def attribute(self, name: str, value: Callable[[], None] | None = None) -> None:
        self.open(10)
        self.text(1, name)
        if value is not None:
            value()
        self.close()

    def most_bytes(self) -> int:
        """No node of this sort is longer."""
        worst = {LITERAL: 0, DECIMAL: 20, VARINT: 10, VARINTS: 40, OPEN: 0, CLOSE: 5}
        return len(self.literals) + 10 + sum(worst[what] for what, _, _ in self.steps)


@kernel
def _put_varint(out: Any, at: Any, value: Any) -> Any:
    while value > np.uint64(127):
        out[at] = np.uint8((value & np.uint64(127)) | np.uint64(128))
        value >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(value)
    return at + 1


@kernel
def _put_decimal(out: Any, at: Any, value: Any) -> Any:
    digits = 1
    rest = value // np.uint64(10)
    while rest:
        digits += 1
        rest //= np.uint64(10)
    for k in range(digits - 1, -1, -1):
        out[at + k] = np.uint8(48) + np.uint8(value % np.uint64(10))
        value //= np.uint64(10)
    return at + digits


@kernel
def _close(out: Any, begin: Any, at: Any) -> Any:
    """Puts the length of out[begin:at] before it, in the byte that was kept free at begin - 1."""
    size = at - begin
    shift, rest = 0, size >> 7
    while rest:
        shift += 1
        rest >>= 7
    if shift:
        for k in range(at - 1, begin - 1, -1):
            out[k + shift] = out[k]
    _put_varint(out, begin - 1, np.uint64(size))
    return at + shift


@kernel
def _write(sort: Any, slots: Any, first: Any, steps: Any, literals: Any, out: Any) -> Any:
    """Writes the nodes of a block, each behind its length, and returns how many bytes. Sort s has the steps
    first[s]:first[s+1]."""
    stack = np.empty(8, np.int64)
    at = 0
    for i in range(len(sort)):
        stack[0] = at + 1
        at += 1
        depth = 1
        for k in range(first[sort[i]], first[sort[i] + 1]):
            what, a, b = steps[k, 0], steps[k, 1], steps[k, 2]
            if what == 0:
                for j in range(b):
                    out[at + j] = literals[a + j]
                at += b
            elif what == 1:
                at = _put_decimal(out, at, slots[i, a] + np.uint64(b))
            elif what == 2:
                at = _put_varint(out, at, slots[i, a])
            elif what == 3:
                for j in range(slots[i, b]):
                    at = _put_varint(out, at, slots[i, a + np.int64(j)])
            elif what == 4:
                at += 1
                stack[depth] = at
                depth += 1
            else:
                depth -= 1
                at = _close(out, stack[depth], at)
        at = _close(out, stack[0], at)
    return at


def _link(programs: Sequence[Program]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    first, steps, literals = [0], [], bytearray()
    for p in programs:
        base = len(literals)
        steps += [(what, a + base if what == LITERAL else a, b) for what, a, b in p.steps]
        literals += p.literals
        first.append(len(steps))
    return np.array(first), np.array(steps, np.int64), np.frombuffer(bytes(literals), np.uint8)


def write(path: str | Path, nodes: int, metadata: bytes, programs: Sequence[Program], choose: Fill, seed: int) -> int:
    """Writes a file of so many nodes and returns its size. `choose(row, random, rng)` gives the slots; slot 0 holds the
    number of the program."""
    first, steps, literals = _link(programs)
    out = np.empty(BLOCK * max(p.most_bytes() for p in programs), np.uint8)
    rng, total = np.random.default_rng(seed), 0
    with open(path, "wb") as file:
        total += file.write(varint(len(metadata)) + metadata)
        for start in range(0, nodes, BLOCK):
            row = np.arange(start, min(start + BLOCK, nodes))
            slots = choose(row, rng.integers(0, 1 << 40, len(row)), rng)
            used = _write(slots[:, 0].astype(np.int64), slots, first, steps, literals, out)
            total += file.write(out[:used].data)
    return total


def _metadata(**values: str | int) -> bytes:
    p = Program()
    for name, value in values.items():
        body = varint(1 << 3 | 2) + varint(len(name)) + name.encode()
        if isinstance(value, str):
            body += varint(29 << 3 | 2) + varint(len(value)) + value.encode()
        else:
            body += varint(13 << 3) + varint(value)
        p.put(varint(2 << 3 | 2) + varint(len(body)) + body)
    return bytes(p.literals)


# ---- a PyTorch training step through the official converter

# Slots. The inputs of a node are tensors IN.. in storages STORE..; it makes the tensors OUT, OUT + 1, ...
ID, CTRL, DATA, DATA_COUNT, MICROS, RF_ID, SEQ, TID, FW_TID, FW_PARENT, OUT, IN = (
    1,
    2,
    3,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
)
STORE, TORCH_SLOTS = IN + 4, IN + 8

# Columns: the operator without `aten::`, the rest of its schema, arguments, results, how often it comes in the 4,154
# nodes of a real step, the kernel that it launches. Arguments and results: T a tensor, W a weight, V a vector, L sizes,
# S strides, P three tensors, M forty, I int, F float, B bool, N none.
OPERATORS = Path(__file__).with_name("torch_ops.tsv")
# name and how often, forward and twice in the backward pass (the engine's call and the function itself)
BACKWARD = {
    "torch::autograd::AccumulateGrad": 104,
    "ViewBackward0": 100,
    "UnsafeViewBackward0": 50,
    "MmBackward0": 50,
    "TBackward0": 50,
    "TransposeBackward0": 48,
    "NativeLayerNormBackward0": 26,
    "AddBackward0": 24,
    "GeluBackward0": 12,
    "ScaledDotProductCudnnAttentionBackward0": 12,
    "SplitBackward0": 12,
    "NllLossBackward0": 2,
    "LogSoftmaxBackward0": 2,
    "ToCopyBackward0": 2,
    "EmbeddingBackward0": 2,
}
SIZES = [(4, 1024, 1024), (2, 2048, 4096), (8, 512, 768), (1, 4096, 5120), (16, 128, 1024), (32, 197, 384)]
SIZES += [(4, 1024, 3072), (4, 512, 4096), (2, 1024, 8192), (1, 8192, 1024), (64, 50, 256), (3, 77, 2048)]
TILES = ["256x128", "128x256", "192x192", "64x256", "128x128", "320x128"]


def _arguments(letters: str, size: tuple[int, int, int], made: bool) -> tuple[list[str | tuple[int, int]], str, str]:
    """Values (with slots for the tensors), shapes and types as the converter prints them."""
    b, s, h = size
    values: list[str | tuple[int, int]] = []
    shapes, types, used = [], [], 0

    def tensor(shape: tuple[int, ...]) -> list[str | tuple[int, int]]:
        nonlocal used
        number = (OUT, used) if made else (IN + used % 4, used // 4)
        store = (STORE + used % 4, used // 4)
        used += 1
        return ["[", number, ", ", store, f", 0, {int(np.prod(shape))}, 2, 'cuda:0']"]

    plain = {"I": ("1", "Int"), "F": ("1e-05", "Double"), "B": ("False", "Bool"), "N": ("'<None>'", "None")}
    shape_of = {"T": (b, s, h), "W": (h, h), "V": (h,), "P": (b, s, h), "M": (h, 4)}
    for k, letter in enumerate(letters):
        values.append(", " if k else "")
        if letter in "TWV":
            values += tensor(shape_of[letter])
            shapes.append(str(list(shape_of[letter])))
            types.append("'Tensor(c10::BFloat16)'")
        elif letter in "PM":
            count = 3 if letter == "P" else 40
            for j in range(count):
                values += ["[" if j == 0 else ", ", *tensor(shape_of[letter])]
            values.append("]")
            shapes.append(str([list(shape_of[letter])] * count))
            types.append(f"'GenericList[{','.join(['Tensor(c10::BFloat16)'] * count)}]'")
        elif letter in "LS":
            values.append(str([b, s, h] if letter == "L" else [s * h, h, 1]))
            shapes.append("[[], [], []]")
            types.append("'GenericList[Int,Int,Int]'")
        else:
            values.append(plain[letter][0])
            shapes.append("[]")
            types.append(f"'{plain[letter][1]}'")
    return ["[", *values, "]"], f"[{', '.join(shapes)}]", f"[{', '.join(types)}]"


def _torch_node(name: str, schema: str, inputs: str, outputs: str, size: tuple[int, int, int], stream: int) -> Program:
    p = Program()
    p.slot(1, ID)
    p.text(2, name)
    p.constant(3, 4)
    p.open(4)
    p.steps.append((VARINT, CTRL, 0))
    p.close()
    p.many(5, DATA, DATA_COUNT)
    p.slot(7, MICROS)
    for number, letters in ((8, inputs), (9, outputs)):
        values, shapes, types = _arguments(letters, size, made=number == 9)
        p.open(number)
        p.text(1, *values)
        p.text(2, shapes)
        p.text(3, types)
        p.close()
    for label, slot in (("rf_id", RF_ID), ("fw_parent", FW_PARENT), ("seq_id", SEQ)):
        p.attribute(label, partial(p.slot, 9, slot))
    p.attribute("scope", lambda: p.constant(9, 0))
    for label, slot in (("tid", TID), ("fw_tid", FW_TID)):
        p.attribute(label, partial(p.slot, 9, slot))
    p.attribute("op_schema", lambda: p.text(29, schema))
    p.attribute("is_cpu_op", lambda: p.constant(27, int(stream == 0)))
    p.attribute("stream", lambda: p.constant(9, stream))
    return p


def _torch_programs() -> tuple[list[Program], NDArray[np.float64]]:
    programs: list[Program] = []
    often: list[float] = []
    lines = OPERATORS.read_text(encoding="utf-8").splitlines()[1:]
    for v, size in enumerate(SIZES):
        # the first size is that of the step, the others are rare: a real file has some hundred shapes, not thousands
        share = 0.6 if v == 0 else 0.4 / (len(SIZES) - 1)
        for line in lines:
            name, schema, inputs, outputs, count, kernel = line.split("\t")
            full = f"aten::{name}{schema}"
            programs.append(_torch_node(f"aten::{name}", full, inputs, outputs, size, 0))
            often.append(int(count) * share)
            if kernel:
                parts = {"t": TILES[v % 6], "c": ["1x2", "2x1"][v % 2], "x": ["NNT", "TNT", "NTN"][v % 3]}
                label = kernel.format(d=["c10::BFloat16", "c10::Half", "float"][v % 3], v=2 << v % 4, **parts)
                programs.append(_torch_node(label, full, inputs, outputs, size, 7))
                often.append(int(count) * share)
        if v == 0:
            for name, times in BACKWARD.items():
                programs.append(_torch_node(f"autograd::engine::evaluate_function: {name}", "", "", "", size, 0))
                programs.append(_torch_node(name, "", "", "", size, 0))
                often += [times, times]
    weight = np.array(often)
    return programs, weight / weight.sum()


def _torch_slots(threshold: NDArray[np.float64]) -> Fill:
    def fill(row: NDArray[np.int64], random: NDArray[np.int64], rng: np.random.Generator) -> Slots:
        n = len(row)
        slots = np.zeros((n, TORCH_SLOTS), np.int64)
        id = row + 2
        slots[:, 0] = np.searchsorted(threshold, rng.random(n), side="right")
        slots[:, ID] = id
        slots[:, CTRL] = np.maximum(id - np.where(random & 3, 1 + (random >> 2 & 1), 1 + (random >> 3 & 1023)), 1)
        slots[:, DATA] = np.minimum(np.maximum(id - 2 - (random >> 13 & 4095), 2), id - 1)
        slots[:, DATA + 1] = id - 1
        slots[:, DATA_COUNT] = 1 + (random >> 25 & 3 != 0)
        slots[:, MICROS] = 1 + rng.lognormal(2.5, 1.3, n).astype(np.int64)
        slots[:, RF_ID] = id - id // 9
        slots[:, SEQ] = np.where(random >> 27 & 3 == 0, 800 + row // 6, -1)
        slots[:, TID] = 1 + (row % 4154 > 1200)
        slots[:, FW_TID] = random >> 29 & 7 == 0
        slots[:, OUT] = 3 * row + 500
        # mostly what was made a moment ago, sometimes a parameter
        recent = 3 * np.maximum(row[:, None] - rng.integers(1, 300, (n, 4)), 0) + 500
        slots[:, IN : IN + 4] = np.where(rng.random((n, 4)) < 0.2, 6 + 2 * rng.integers(0, 200, (n, 4)), recent)
        slots[:, STORE : STORE + 4] = rng.integers(7, 1400, (n, 4))
        return slots.view(np.uint64)

    return fill


def pytorch_like(path: str | Path, nodes: int, seed: int = 0) -> int:
    """A training step as the official converter writes it; returns the size in bytes."""
    programs, weight = _torch_programs()
    about = _metadata(schema="1.1.1-chakra.0.0.4", pid=387, time="2025-01-01 00:00:00", start_ts=38564, finish_ts=38767)
    threshold = np.cumsum(weight)[:-1]
    return write(path, nodes, about, programs, _torch_slots(threshold), seed)


# ---- the symbolic tensor graph generator

STG_ID, STG_DATA, BATCH, LAYER, OPS, BYTES, GROUP, STG_COUNT, STG_SLOTS = 1, 2, 4, 5, 6, 7, 8, 9, 10
SHAPES = [
    "MicroBatch/dp,Seq/cp,Dmodel/Head,KVHead/tp",
    "MicroBatch/dp,Seq/cp,Dmodel/Head,(Head + 2*KVHead)/tp",
    "MicroBatch/dp,Seq/(cp*tp),Dmodel",
    "MicroBatch/dp,KExperts*Seq/(cp*ep*tp),Dmodel",
    "Dmodel,Dmodel/Head,(Head + 2*KVHead)/tp",
    "Dff/tp,Dmodel",
]
MODULES = {
    "input_norm": ["y", "dx", "dy"],
    "mha": ["wqkv", "qkv", "q", "kv", "o", "dqkv", "dkv", "dwqkv", "do", "dwo"],
    "mha.attn_kernel": ["q", "k", "v", "qk", "o", "dq", "dk", "dv"],
    "mha_res": ["y", "dx1", "dx2"],
    "post_attn_norm": ["y", "dx", "dy"],
    "ffn": ["xup", "xgate", "xdown", "xact", "dxup", "dxgate", "dxdown", "dwup", "dwgate", "dwdown"],
    "moe": ["yrouter", "yrouted", "xrouted", "dwrouter", "dx"],
    "ffn_res": ["y", "dx1", "dx2"],
}
Text = list[str | tuple[int, int]]


def _stg_tensor(module: str, tensor: str) -> Text:
    shape = SHAPES[(len(module) + 5 * len(tensor)) % len(SHAPES)]
    return ["mb", (BATCH, 0), ".transformer.", (LAYER, 0), f".{module}.{tensor}@0", shape]


def _stg_node(label: Text, inputs: list[Text], output: Text | None, op_type: str, collective: int) -> Program:
    p = Program()
    p.slot(1, STG_ID)
    p.text(2, *label)
    p.constant(3, 4 if output else 7)
    p.many(5, STG_DATA, STG_COUNT)

    def strings(tensors: list[Text]) -> None:
        p.open(30)
        for tensor in tensors:
            p.text(1, *tensor)
            p.text(1, (BYTES, 0), ".0")
        p.close()

    p.attribute("inputs", lambda: strings(inputs))
    p.attribute("outputs", (lambda: strings([output])) if output else None)
    if output:
        p.attribute("num_ops", lambda: p.slot(9, OPS))
        p.attribute("tensor_size", lambda: p.slot(13, BYTES))
        p.attribute("op_type", lambda: p.text(29, op_type))
    else:
        p.attribute("comm_size", lambda: p.slot(9, BYTES))
        p.attribute("comm_type", lambda: p.constant(9, collective))
        p.attribute("pg_name", lambda: p.text(29, (GROUP, 0)))
        p.attribute("is_cpu_op", lambda: p.constant(7, 0))
    return p


def _stg_programs() -> tuple[list[Program], NDArray[np.int64]]:
    """The nodes of one layer, in order, and the number of inputs of each, which is that of its dependencies."""
    programs, counts = [], []
    tensors = [(m, t) for m, names in MODULES.items() for t in names]
    for k, (module, tensor) in enumerate(tensors):
        name: Text = ["mb", (BATCH, 0), ".transformer.", (LAYER, 0), f".{module}.{tensor}@0"]
        inputs = [_stg_tensor(*tensors[k - j]) for j in range(1, 2 + k % 2)]
        op_type = ["M", "SLICE", "A", "E", "E2", "CUSTOM"][k % 6]
        programs.append(_stg_node([*name, "_COMP"], inputs, _stg_tensor(module, tensor), op_type, 0))
        counts.append(len(inputs))
        if k % 8 == 3:
            programs.append(_stg_node([*name, "_X1COMM"], inputs[:1], None, "", [0, 2, 6, 7][k % 4]))
            counts.append(1)
    return programs, np.array(counts)


def _stg_slots(count: int, inputs: NDArray[np.int64]) -> Fill:
    def fill(row: NDArray[np.int64], random: NDArray[np.int64], rng: np.random.Generator) -> Slots:
        slots = np.zeros((len(row), STG_SLOTS), np.int64)
        id = row + 1 + row // 5
        slots[:, 0] = row % count
        slots[:, STG_ID] = id
        slots[:, STG_DATA] = np.maximum(id - 1 - (random & 31), 1)
        slots[:, STG_DATA + 1] = np.maximum(id - 33 - (random >> 5 & 63), 1)
        slots[:, STG_COUNT] = inputs[row % count]
        slots[:, BATCH] = row // (count * 96)
        slots[:, LAYER] = row // count % 96
        slots[:, BYTES] = 512 << (random >> 11 & 15)
        slots[:, OPS] = (1 + (random >> 15 & 7)) << (10 + (random >> 18 & 15))
        slots[:, GROUP] = random >> 22 & 31
        return slots.view(np.uint64)

    return fill


def stg_like(path: str | Path, nodes: int, seed: int = 0) -> int:
    """A generated transformer; returns the size in bytes."""
    programs, inputs = _stg_programs()
    about = _metadata(schema="symbolic_tensor_network")
    return write(path, nodes, about, programs, _stg_slots(len(programs), inputs), seed)


MAKERS = {"pytorch": pytorch_like, "stg": stg_like}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(MAKERS))
    parser.add_argument("nodes", type=int)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    start = time.perf_counter()
    size = MAKERS[arguments.kind](arguments.path, arguments.nodes, arguments.seed)
    spent = time.perf_counter() - start
    print(f"{arguments.path}: {arguments.nodes:,} nodes, {size / 1e6:,.1f} MB in {spent:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
