"""Parts: layers that a model is composed of, as data. A YAML file lists them in order; widths follow.

    family: composed
    streams: [{name: image, width: 64, tokens: 4096}, {name: text, width: 4096, tokens: 512}]
    blocks:
      - {name: embedding, parts: [{part: linear, out: 3072}, {part: linear, stream: text, out: 3072}]}
      - {name: layers, repeat: 24, parts: [{part: norm}, {part: attention, heads: 24}, {part: mlp, ffn: 12288}]}
      - {name: head, parts: [{part: norm}, {part: linear, out: 64}, {part: loss}]}

A stream is tokens (or pixels) of a width. A part transforms the one that `stream` names, to the width it states. A core
takes the streams that attend jointly, after their projections to queries, keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from etude.base.errors import ClusterError
from etude.base.figures import figure, text


class PartKind(StrEnum):
    LINEAR = "linear"
    MLP = "mlp"
    ATTENTION = "attention"
    """Projections, scores, projection out."""
    CORE = "core"
    """Only the scores, of earlier projections."""
    NORM = "norm"
    ACTIVATION = "activation"
    SCALE = "scale"
    """Elementwise: a modulation, a gate, a position."""
    ADD = "add"
    TABLE = "table"
    """Rows of a table, looked up."""
    WEIGHTS = "weights"
    """Parameters that are added: positions, tokens of a class."""
    CONV = "conv"
    CONV1D = "conv1d"
    """Over neighbouring tokens, as a matrix product."""
    POOL = "pool"
    """Fewer pixels or tokens, by the factor."""
    UPSAMPLE = "upsample"
    MERGE = "merge"
    """Neighbouring tokens concatenated: fewer and wider."""
    UNMERGE = "unmerge"
    TOKENS = "tokens"
    """This many tokens from here on: with a class token, or only that."""
    KEEP = "keep"
    """The stream as it is, under a name, for a `join`."""
    JOIN = "join"
    """Concatenated with what was kept: wider."""
    LINEAR_ATTENTION = "linear_attention"
    """Sums over keys and values instead of scores, of earlier projections."""
    GATHER = "gather"
    """A sum over the edges of a graph."""
    DISTANCE = "distance"
    """Distances to rows of weights, the nearest found and its neighbours moved: a self-organising map."""
    LOSS = "loss"


class Split(StrEnum):
    """How tensor-parallel ranks share a linear layer."""

    NONE = ""
    COLUMN = "column"
    ROW = "row"


class NormKind(StrEnum):
    LAYER = "layer"
    RMS = "rms"
    BATCH = "batch"
    GROUP = "group"


class QkNorm(StrEnum):
    NONE = ""
    HEAD = "head"
    WIDE = "wide"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPart:
    """One layer. Which fields apply depends on the kind."""

    part: PartKind = figure("choice", "which layer", of=PartKind)
    name: str = text("name in the trace; default: its kind")
    stream: str = text("input stream; default: the first; `image+text`: both, with the same weights")
    out: int = figure("count", "output width", 0)
    bias: bool = figure("flag", "it has a bias", True)
    key_bias: bool | None = figure("flag", "the projection to keys has one; default: as the others", None)
    out_bias: bool | None = figure("flag", "the projection out of attention has one; default: as the others", None)
    split: Split = figure("choice", "over tensor-parallel ranks", Split.NONE)
    tied: bool = figure("flag", "its weights are those of another part; of a core: one norm for all streams", False)
    aside: bool = figure(
        "flag", "its result is used elsewhere (a modulation, a shortcut): the stream is unchanged", False
    )
    heads: int = figure("count", "attention heads", 0)
    kv_heads: int = figure("count", "heads of keys and values; 0: as many as heads", 0)
    head_size: int = figure("count", "width of a head; 0: width / heads", 0)
    keys: str = text("stream of keys and values, if different")
    causal: bool = figure("flag", "causal: tokens see those before them", False)
    window: int = figure("count", "largest number of keys that a token sees; 0: all", 0)
    rotary: bool = figure("flag", "queries and keys have rotary positions", False)
    qk_norm: QkNorm = figure("choice", "queries and keys are normalised", QkNorm.NONE)
    ffn: int = figure("count", "inner width of an mlp", 0)
    gated: bool = figure("flag", "with a gate: two projections in", False)
    norm: NormKind = figure("choice", "which normalisation", NormKind.LAYER)
    affine: bool = figure("flag", "the norm has weights", True)
    rows: int = figure("count", "rows of a table", 0)
    lookups: int = figure("count", "rows looked up and added for a token", 1)
    params: int = figure("count", "parameters of `weights`", 0)
    kernel: int = figure("count", "side of a convolution", 1)
    depth: int = figure("count", "frames that a convolution spans", 1)
    stride: int = figure("count", "stride of a convolution", 1)
    padding: int = figure("count", "pixels around an image; default: half a kernel", 0)
    valid: bool = figure("flag", "only where the kernel is inside the image, except for `padding`", False)
    groups: int = figure("count", "groups of channels; 0: one for each channel", 1, zero=True)
    factor: int = figure("count", "factor of pool, upsample, merge and unmerge; 0: to one", 2, zero=True)
    count: int = figure("count", "tokens from here on; edges of a graph", 0)

    def __post_init__(self) -> None:
        for name in _NEEDED.get(self.part, ()):
            if not getattr(self, name):
                raise ClusterError(f"a part `{self.part}` needs `{name}`")


_NEEDED = {
    PartKind.LINEAR: ("out",),
    PartKind.MLP: ("ffn",),
    PartKind.ATTENTION: ("heads",),
    PartKind.CORE: ("heads",),
    PartKind.TABLE: ("rows", "out"),
    PartKind.WEIGHTS: ("params",),
    PartKind.CONV: ("out",),
    PartKind.CONV1D: ("out",),
    PartKind.TOKENS: ("count",),
    PartKind.KEEP: ("name",),
    PartKind.JOIN: ("name",),
    PartKind.LINEAR_ATTENTION: ("heads",),
    PartKind.GATHER: ("count",),
    PartKind.DISTANCE: ("rows",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Parts that stay together on a pipeline stage; `repeat` equal ones in sequence."""

    name: str = figure("text", "name in the trace")
    repeat: int = figure("count", "number of repeats", 1)
    parts: tuple[LayerPart, ...] = figure("list", "one after another", of=LayerPart)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStream:
    """What passes through parts: tokens, or frames of pixels, of one width."""

    name: str = figure("text", "name used by parts")
    width: int = figure("count", "at the start")
    tokens: int = figure("count", "tokens of a sample; 0: the plan's sequence", 0)
    side: int = figure("count", "side of an image in pixels", 0)
    frames: int = figure("count", "frames of a video", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """A network next to a decoder whose result the decoder processes: of images, sounds, videos."""

    name: str = figure("text", "name in the trace")
    streams: tuple[TokenStream, ...] = figure("list", "input streams", of=TokenStream)
    blocks: tuple[Piece, ...] = figure("list", "from first to last", of=Piece)
