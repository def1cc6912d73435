"""ASTRA-sim's text workloads: a kind of parallelism, a count, and one line per layer.

    DATA
    2
    conv1  -1  130  NONE 0   120  NONE 0   320  ALLREDUCE 37632  32
    conv2  -1   34  NONE 0    36  NONE 0    75  ALLREDUCE 65536   7

The columns of a layer: name, a number that nothing reads, then of the forward pass, of the input's gradient and of the
weights' gradient each the compute time in us, the collective and its bytes, then the time of the update, which nothing
reads either. All ranks run the same layers. SimAI's text, whose first line has `all_gpus`, is in ns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import FormatError, UsageError
from etude.capture.ingest.text_graphs import GRAPHS
from etude.capture.ingest.text_layers import Comm, Header, Layer
from etude.kernels.varint import encode_varint
from etude.model.build import TraceBuilder
from etude.model.job import MAX_WORLD, Groups, Job
from etude.model.schema import Collective

SCHEMA: Final = "1.0.2-chakra.1.0.0"
"""The schema in files of Chakra's own converter."""
MAX_BYTES: Final = 1 << 24
COLLECTIVES: Final = {
    "NONE": Collective.NONE,
    "ALLREDUCE": Collective.ALL_REDUCE,
    "ALLTOALL": Collective.ALL_TO_ALL,
    "ALLGATHER": Collective.ALL_GATHER,
    "REDUCESCATTER": Collective.REDUCE_SCATTER,
}
_COLUMNS: Final = 12
_OWN: Final = ("DATA", "MODEL", "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA")
"""What a layer of HYBRID_CUSTOMIZED may be."""
_LISTS: Final = {"checkpoints": "checkpoints", "checkpoint_initiates": "recomputing"}
_SIMAI: Final = ("ep", "pp", "vpp", "ga", "all_gpus", "pp_comm")
_ALONE: Final = ("ep", "pp")
"""Only 1 is accepted for these in SimAI's text: other groups and stages do not fit in one program."""
_TRANSFORMERS: Final = ("HYBRID_TRANSFORMER", "HYBRID_TRANSFORMER_FWD_IN_BCKWD")


def read_text(path: Path, ranks: int | None, *, passes: int = 1) -> Job:
    """A workload as a job of this many ranks and passes, which share one trace; None: as many as in the text."""
    if ranks is not None and not 1 <= ranks <= MAX_WORLD:
        raise UsageError(f"{ranks:,} ranks", hint=f"from 1 to {MAX_WORLD:,}")
    if passes < 1:
        raise UsageError(f"{passes} passes", hint="at least 1")
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise FormatError(
            f"{size:,} bytes are too many for a text workload", path=path, hint=f"at most {MAX_BYTES:,} are read"
        )
    try:
        text = path.read_bytes().decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as problem:
        raise FormatError("is not a text file", path=path, offset=problem.start) from None
    header, layers = _Reader(path, text).read()
    if header.gpus:
        layers = [_gathered(layer, header, path) for layer in layers]
    return _job(path.name.removesuffix(".txt"), text, header, layers, _ranks(header, ranks, path), passes)


def _ranks(header: Header, ranks: int | None, path: Path) -> int:
    if ranks is None and not header.gpus:
        hint = "`etude convert w.txt OUT --ranks 8`, or etude.open(path, ranks=8)"
        raise UsageError("a text workload does not give its number of ranks", where=str(path), hint=hint)
    if ranks is not None and header.gpus not in (0, ranks):
        raise UsageError(f"{ranks:,} ranks of a text for {header.gpus:,}", where=str(path), hint="no --ranks")
    return ranks or header.gpus


def _gathered(layer: Layer, header: Header, path: Path) -> Layer:
    """The layer with all-gathers by the bytes of a member, as everywhere else."""
    width = header.model_parallel or header.gpus
    found = []
    for comm, members in (
        (layer.forward, width),
        (layer.input_gradient, width),
        (layer.weight_gradient, header.gpus // width),
    ):
        size = comm.size_bytes
        if comm.collective == Collective.ALL_GATHER:
            if size % max(members, 1):
                problem = f"an all-gather of {size:,} bytes is not the parts of {members} members"
                raise FormatError(problem, path=path, where=f"layer `{layer.name}`")
            size //= max(members, 1)
        found.append(replace(comm, size_bytes=size))
    return replace(layer, forward=found[0], input_gradient=found[1], weight_gradient=found[2])


@dataclass(slots=True)
class _Reader:
    path: Path
    text: str
    lines: list[tuple[int, list[str]]] = field(default_factory=list)

    def read(self) -> tuple[Header, list[Layer]]:
        self.lines = [(n, line.split()) for n, line in enumerate(self.text.split("\n"), 1) if line.strip()]
        if not self.lines:
            raise FormatError("is empty", path=self.path, hint=_SHAPE)
        header = self._header(*self.lines[0])
        if len(self.lines) < 2:
            self._fail(self.lines[0][0], "no number of layers follows", _SHAPE)
        number, words = self.lines[1]
        count = self._number(number, "the number of layers", words[0])
        if len(words) > 1:
            self._fail(number, f"`{words[1]}` after the number of layers", _SHAPE)
        layers = [self._layer(number, words, header) for number, words in self.lines[2:]]
        if count != len(layers) or not layers:
            self._fail(number, f"announces {count:,} layers, but {len(layers):,} follow", "one line per layer")
        self._check(header, layers)
        return header, layers

    def _header(self, number: int, words: list[str]) -> Header:
        policy, rest = words[0], words[1:]
        if policy not in GRAPHS:
            self._fail(
                number,
                f"unknown parallelism `{policy}`",
                f"a `.txt` file is read as ASTRA-sim's text workload; known: {', '.join(GRAPHS)}",
            )
        header = Header(policy)
        if policy in ("HYBRID_DLRM", "HYBRID_DLRM_ENHANCED"):
            if not rest:
                self._fail(number, "no last bottom layer is given", f"`{policy} 4`")
            header.last_bottom = self._number(number, "the last bottom layer", rest.pop(0))
        while rest and policy in _TRANSFORMERS:
            key = rest.pop(0).rstrip(":")
            if not rest:
                self._fail(number, f"nothing follows `{key}`", "`model_parallel_NPU_group: 8`")
            value = self._number(number, f"`{key}`", rest.pop(0))
            if key in _LISTS:
                if len(rest) < value:
                    self._fail(number, f"`{key}` announces {value}, but {len(rest)} follow", "a count, then the layers")
                listed = [self._number(number, f"`{key}`", rest.pop(0)) for _ in range(value)]
                setattr(header, _LISTS[key], listed)
            elif key == "model_parallel_NPU_group":
                header.model_parallel = value
            elif key in _SIMAI and policy == _TRANSFORMERS[1]:
                self._simai(number, header, key, value)
            else:
                known = ", ".join(("model_parallel_NPU_group", *_LISTS))
                self._fail(number, f"unknown key `{key}`", f"known: {known}")
        if rest:
            self._fail(number, f"`{rest[0]}` after the parallelism", _SHAPE)
        return header

    def _simai(self, number: int, header: Header, key: str, value: int) -> None:
        if key in _ALONE and value != 1:
            self._fail(number, f"`{key}` is {value}", "experts over ranks and pipeline stages of SimAI are not read")
        if key == "all_gpus":
            if not 1 <= value <= MAX_WORLD:
                self._fail(number, f"`all_gpus` is {value:,}", f"from 1 to {MAX_WORLD:,}")
            header.gpus = value

    def _layer(self, number: int, words: list[str], header: Header) -> Layer:
        customized = header.policy == "HYBRID_CUSTOMIZED"
        wanted = _COLUMNS + customized
        if len(words) != wanted:
            hint = f"{_LAYER} parallelism" if customized else _LAYER
            self._fail(number, f"{len(words)} columns, expected {wanted}", hint)
        comms = []
        for at, of in ((2, "forward"), (5, "input gradient"), (8, "weight gradient")):
            time = self._number(number, f"compute time, {of}", words[at])
            size = self._number(number, f"bytes, {of}", words[at + 2])
            word = words[at + 1]
            if header.gpus and not size and word.endswith("_EP"):  # AICB's lines of experts, of a model without them
                word = "NONE"
            if word not in COLLECTIVES:
                self._fail(number, f"unknown collective `{word}`, {of}", f"known: {', '.join(COLLECTIVES)}")
            time *= 1 if header.gpus else 1000
            comms.append(Comm(time, word, COLLECTIVES[word], size))
        policy = words[12] if customized else ""
        if customized and policy not in _OWN:
            self._fail(number, f"unknown parallelism of a layer, `{policy}`", f"known: {', '.join(_OWN)}")
        forward, inputs, weights = comms
        return Layer(words[0], forward, inputs, weights, policy)

    def _check(self, header: Header, layers: list[Layer]) -> None:
        named = [("last bottom layer", [header.last_bottom] if header.last_bottom is not None else [])]
        named += [("checkpoint", header.checkpoints), ("recomputing layer", header.recomputing)]
        for what, numbers in named:
            for layer in numbers:
                if not 0 <= layer < len(layers):
                    self._fail(1, f"{what} {layer} is not one of the {len(layers)} layers", "layers count from 0")
        for layer in header.recomputing:
            if not any(checkpoint < layer for checkpoint in header.checkpoints):
                self._fail(1, f"layer {layer} recomputes, but no checkpoint is before it", "checkpoints: 1 0")

    def _number(self, number: int, what: str, word: str) -> int:
        if not re.fullmatch(r"\d{1,18}", word):
            self._fail(number, f"{what} is `{word}`", "use a whole number of at least 0")
        return int(word)

    def _fail(self, number: int, problem: str, hint: str) -> NoReturn:
        raise FormatError(problem, path=self.path, where=f"line {number}", hint=hint)


_SHAPE: Final = "line 1: parallelism, line 2: number of layers, then one line per layer"
_LAYER: Final = "name unused  time collective bytes (forward, input gradient, weight gradient)  update"


def _job(name: str, text: str, header: Header, layers: list[Layer], ranks: int, passes: int) -> Job:
    builder = TraceBuilder()
    GRAPHS[header.policy](builder, header, layers, passes)
    trace = builder.build()
    groups, group_of = _groups(list(builder.groups), header.model_parallel, ranks)
    return Job(
        name=name,
        traces=(trace,),
        ranks=np.arange(ranks, dtype=np.int32),
        trace_of=np.zeros(ranks, np.int32),
        groups=groups,
        group_start=np.arange(ranks + 1, dtype=np.int64) * len(builder.groups),
        group_of=group_of.reshape(-1),
        peer_start=np.zeros(ranks + 1, np.int64),
        peer_of=np.zeros(0, np.int64),
        id_base=np.arange(ranks, dtype=np.uint64) * np.uint64(len(trace)),
        tag_base=np.zeros(ranks, np.int64),
        world_size=ranks,
        metadata=(_string("schema", SCHEMA) + _string("input_file", text),),
        metadata_of=np.zeros(ranks, np.int32),
        provenance={"source_format": "simai text" if header.gpus else "astra-sim text", "schema": SCHEMA},
    )


def _groups(slots: list[str], width: int, ranks: int) -> tuple[Groups, NDArray[np.int32]]:
    """Model-parallel groups of `width` neighbours, data-parallel ones of those `width` apart; group of (rank, slot)."""
    if not width:
        return Groups.of([]), np.zeros((ranks, 0), np.int32)
    if ranks % width:
        raise UsageError(f"{ranks} ranks are not a multiple of {width}", hint="a multiple of model_parallel_NPU_group")
    rank, models = np.arange(ranks), ranks // width
    entries = [(f"model{m}", list(range(m * width, (m + 1) * width))) for m in range(models)]
    entries += [(f"data{d}", list(range(d, ranks, width))) for d in range(width)]
    number = {"model": rank // width, "data": models + rank % width}
    found = [number[slot] for slot in slots]
    return Groups.of(entries), np.stack(found, axis=1).astype(np.int32) if found else np.zeros((ranks, 0), np.int32)


def _string(name: str, value: str) -> bytes:
    """An attribute of the GlobalMetadata message: field 2, with its name (1) and a string (29)."""
    inner = [(b"\x0a", name.encode()), (b"\xea\x01", value.encode())]
    attribute = b"".join(tag + encode_varint(len(raw)) + raw for tag, raw in inner)
    return b"\x12" + encode_varint(len(attribute)) + attribute
