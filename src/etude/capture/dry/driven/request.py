"""A model that is given without a training loop: what the driver of a dry run trains, how, and on which inputs.

    command = DrivenProgram(program="model.py:build", inputs="tokens=int64[4,8192]", zero=3).command()
    dry_program(command, name="model", world=64, device="h100")

The command is an ordinary one: `etude collect --dry` takes it too. The driver needs PyTorch and nothing else of Etude.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.capture.dry.problems import DrivenError

DRIVER: Final = "etude.capture.dry.driven.driver"
TYPES: Final = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp64": "float64",
    "long": "int64",
    "int": "int32",
}
KNOWN_TYPES: Final = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
EXAMPLE: Final = '--inputs "tokens=int64[4,8192]"'
_NAME = re.compile(r"[A-Za-z_]\w*\Z")


@dataclass(frozen=True, slots=True)
class InputTensor:
    """One argument of a model's `forward`."""

    name: str
    """Empty: given by its place."""
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrivenProgram:
    """A model and how it is trained. One of `program` and `hf` is given."""

    program: str = ""
    """FILE.py:NAME, a function or class that returns a module when it is called without arguments."""
    hf: str = ""
    """A Hugging Face `config.json`."""
    inputs: str = ""
    """Arguments of `forward`; empty: tokens and labels of a language model."""
    micro_batch: int = 1
    seq: int = 0
    """Tokens of a sequence where `inputs` does not say; 0: as many as the config has positions, 4,096 at most."""
    accumulate: int = 1
    """Micro-batches of a step."""
    zero: int = 0
    """3: `fully_shard` of repeated blocks and the rest; 0: DistributedDataParallel, or neither with one rank."""
    dp_shard: int = 0
    """Ranks that a sharded copy is spread over; 0: all."""
    keep_gathered: int = 0
    """1: weights stay gathered from the forward to the backward pass."""
    bucket_bytes: int = 0
    """Of gradients that are reduced together without sharding; 0: PyTorch's own, 25 MiB."""
    recompute: str = "none"
    precision: str = "bf16"
    weights: str = "fp32"
    """Data type that the optimizer updates."""
    grad_dtype: str = "fp32"
    optimizer: str = "adamw"
    clip: int = 1
    attention: str = ""
    """`eager`: scores in memory; of Hugging Face models alone."""

    def is_sharded(self, world: int) -> bool:
        return self.zero == 3 and world > 1

    def command(self) -> list[str]:
        """The words that run it; defaults are left out."""
        words = [sys.executable, "-m", DRIVER]
        for f in fields(self):
            value = getattr(self, f.name)
            if value != f.default:
                words += [f"--{f.name.replace('_', '-')}", str(value)]
        return words

    @classmethod
    def from_words(cls, words: Sequence[str]) -> "DrivenProgram":
        """What the words after `python -m etude.capture.dry.driven.driver` say."""
        known = {f"--{f.name.replace('_', '-')}": f for f in fields(cls)}
        found: dict[str, Any] = {}
        for name, value in zip(words[::2], words[1::2], strict=False):
            if name not in known:
                raise DrivenError(f"unknown option `{name}`", hint=f"known: {', '.join(known)}")
            is_count = isinstance(known[name].default, int)
            if is_count and not value.isdecimal():
                raise DrivenError(f"`{value}` is not a count", where=name)
            found[known[name].name] = int(value) if is_count else value
        if len(words) % 2:
            raise DrivenError(f"`{words[-1]}` has no value")
        return cls(**found)


def check_program(text: str) -> None:
    """Refuses what is not FILE.py:NAME with a file that is there."""
    file, colon, name = text.rpartition(":")
    example = "--program model.py:build, where `build()` returns a torch.nn.Module"
    if not colon or not file or not _NAME.match(name):
        raise UsageError(f"`{text}` is not FILE.py:NAME", where="--program", hint=example)
    if not Path(file).is_file():
        raise UsageError(f"there is no file `{file}`", where="--program", hint=example)
    if Path(file).suffix != ".py":
        raise UsageError(f"`{file}` is not a Python file", where="--program", hint=example)


def input_tensors(text: str) -> list[InputTensor]:
    """The tensors of `tokens=int64[4,8192], mask=bool[4,8192]`; those without a name come first."""
    found: list[InputTensor] = []
    for piece in _pieces(text):
        name, equals, rest = piece.rpartition("=")
        dtype, bracket, sizes = rest.partition("[")
        name, dtype = name.strip(), dtype.strip().removeprefix("torch.")
        if not bracket or not sizes.endswith("]") or (equals and not _NAME.match(name)):
            hint = f"NAME=TYPE[SIZES], for example {EXAMPLE}"
            raise UsageError(f"`{piece}` is not a tensor", where="--inputs", hint=hint)
        dtype = TYPES.get(dtype, dtype)
        if dtype not in KNOWN_TYPES:
            raise UsageError(
                f"`{dtype}` of `{piece}` is not a data type", where="--inputs", hint=f"known: {', '.join(KNOWN_TYPES)}"
            )
        if name in {one.name for one in found if one.name}:
            raise UsageError(f"`{name}` is given twice", where="--inputs")
        if found and found[-1].name and not name:
            raise UsageError(f"`{piece}` has no name, and one before it has", where="--inputs", hint=EXAMPLE)
        found.append(InputTensor(name, dtype, _sizes(sizes[:-1], piece)))
    if not found:
        raise UsageError("no tensor is given", where="--inputs", hint=EXAMPLE)
    return found


def _sizes(text: str, piece: str) -> tuple[int, ...]:
    sizes = [one.strip().replace("_", "") for one in text.split(",")] if text.strip() else []
    if not all(one.isdecimal() and int(one) for one in sizes):
        raise UsageError(f"the sizes of `{piece}` are not counts above 0", where="--inputs", hint=EXAMPLE)
    return tuple(map(int, sizes))


def _pieces(text: str) -> list[str]:
    """Parts between commas or semicolons that are not inside of brackets."""
    return [piece for one in re.split(r"[;,](?![^\[]*\])", text) if (piece := one.strip())]
