"""Model: the shape of a network, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from etude.base.errors import ClusterError
from etude.base.figures import figure, read, said, text, usage_errors
from etude.make.generate.model.parts import Piece, TokenStream, Tower


class Family(StrEnum):
    """What a model is made of."""

    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_DECODER = "encoder_decoder"
    VIT = "vit"
    DIT = "dit"
    DLRM = "dlrm"
    CONVNET = "convnet"
    COMPOSED = "composed"


class Mixer(StrEnum):
    """What mixes tokens in a layer, by its letter in `mixers`."""

    ATTENTION = "a"
    MAMBA = "m"
    MAMBA2 = "s"
    DELTA = "d"
    CHANNEL_DELTA = "k"
    """A delta rule whose state decays channel by channel (Kimi Delta Attention)."""
    NONE = "-"

    @property
    def word(self) -> str:
        words = {"a": "attention", "m": "mamba", "s": "mamba2", "d": "gated_delta", "k": "channel_delta", "-": "none"}
        return words[self.value]


class Feed(StrEnum):
    """What follows in a layer, by its letter in `feeds`."""

    DENSE = "f"
    EXPERTS = "e"
    NONE = "-"


class Norm(StrEnum):
    RMS = "rms"
    LAYER = "layer"


class Positions(StrEnum):
    ROTARY = "rotary"
    LEARNED = "learned"
    NONE = "none"


MOST: Final = {"layers": 10_000, "encoder_layers": 10_000, "predict_layers": 1_000, "tables": 1_000_000}
"""What is worked out one by one, so that a small file cannot ask for work without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The shape of a network. Counts are of the whole model, however it is distributed over ranks."""

    name: str = figure("text", "name")
    family: Family = figure("choice", "family of the architecture", Family.DECODER)
    layers: int = figure("count", "layers; those of the decoder if there is also an encoder", 0)
    hidden: int = figure("count", "width of the residual stream", 0)
    heads: int = figure("count", "attention heads", 0)
    kv_heads: int = figure("count", "heads of keys and values; 0: as many as heads", 0)
    head_size: int = figure("count", "width of a head; 0: hidden / heads", 0)
    ffn: int = figure("count", "width of the feed-forward layer", 0)
    vocab: int = figure("count", "rows of the embedding", 0)
    seq: int = figure("count", "sequence length that a plan takes if it names none", 0)
    gated: bool = figure("flag", "feed-forward with a gate (SwiGLU): three matrices", False)
    norm: Norm = figure("choice", "which normalisation", Norm.RMS)
    norm_bias: bool = figure("flag", "layer norm has a bias", True)
    norm_weights: bool = figure("flag", "norms have weights", True)
    norms: int = figure("count", "norms per layer: 1 for attention and feed-forward, 2, or 4 (also after each)", 2)
    positions: Positions = figure("choice", "position encoding", Positions.ROTARY)
    max_positions: int = figure("count", "rows of a learned position table; 0: the sequence", 0)
    token_types: int = figure("count", "rows of a token-type table", 0)
    bias: bool = figure("flag", "linear layers have a bias", False)
    qkv_bias: bool = figure("flag", "the projections to queries, keys and values have a bias", False)
    out_bias: bool = figure("flag", "the projection out of attention has a bias", False)
    ffn_bias: bool = figure("flag", "the feed-forward layer has biases", False)
    head_bias: bool = figure("flag", "the head has a bias", False)
    qk_norm: bool = figure("flag", "queries and keys are normalised", False)
    qk_norm_wide: bool = figure("flag", "... over all heads at once", False)
    tied: bool = figure("flag", "the head is the embedding", False)
    pooler: bool = figure("flag", "an encoder ends with a pooler, hidden x hidden", False)
    embedding_norm: bool = figure("flag", "the embedding is normalised", False)
    final_norm: bool = figure("flag", "the last layer is followed by a norm", True)
    gate_clamp: bool = figure("flag", "both halves of a gate are clamped before they are multiplied", False)
    sinks: bool = figure("flag", "attention has a learned sink for each head", False)
    window: int = figure("count", "attention window; 0: all", 0)
    window_every: int = figure("count", "every n-th layer has the window", 1)
    full_every: int = figure("count", "every n-th layer has full attention nevertheless; 0: none", 0)
    relative_buckets: int = figure("count", "rows of a relative position table (T5)", 0)
    # latent attention (MLA)
    q_rank: int = figure("count", "rank of compressed queries; 0: not compressed", 0)
    kv_rank: int = figure("count", "rank of compressed keys and values; 0: no latent attention", 0)
    rope_size: int = figure("count", "rotary part of a head", 0)
    nope_size: int = figure("count", "part of a head without positions", 0)
    value_size: int = figure("count", "width of a value head", 0)
    # mixture of experts
    experts: int = figure("count", "routed experts; 0: dense", 0)
    top_k: int = figure("count", "experts of a token", 0)
    expert_latent: int = figure("count", "width in which tokens go to routed experts; 0: hidden", 0)
    expert_ffn: int = figure("count", "width of an expert; 0: ffn", 0)
    expert_bias: bool = figure("flag", "experts and router have biases", False)
    shared_ffn: int = figure("count", "width of the shared experts together", 0)
    shared_gate: bool = figure("flag", "the shared expert has a gate, hidden x 1", False)
    router_bias: bool = figure("flag", "the router has a correction bias for each expert", False)
    dense_layers: int = figure("count", "leading layers without experts", 0)
    moe_every: int = figure("count", "every n-th layer has experts", 1)
    predict_layers: int = figure("count", "layers that predict further tokens (multi-token prediction)", 0)
    # layers of several kinds, with a state instead of keys
    mixers: str = figure(
        "text",
        "token mixer by layer, repeated: a attention, m Mamba, s Mamba-2, d gated delta, k channel-gated delta, - none",
        "a",
    )
    feeds: str = text("feed-forward by layer, repeated: f dense, e experts, -; default: as `experts` says")
    state: int = figure("count", "size of a state; of the keys of a delta rule", 0)
    ssm_heads: int = figure("count", "heads of the state (of Mamba: its channels)", 0)
    ssm_head_size: int = figure("count", "width of such a head", 1)
    ssm_groups: int = figure("count", "groups of the state's inputs; heads of keys of a delta rule", 1)
    ssm_rank: int = figure("count", "rank of Mamba's step sizes", 0)
    ssm_bias: bool = figure("flag", "projections into and out of the state have biases", False)
    ssm_norm: bool = figure("flag", "Mamba's step sizes and inputs are normalised", False)
    conv: int = figure("count", "tokens that the short convolution before a state spans", 4)
    conv_bias: bool = figure("flag", "that convolution has a bias", True)
    gated_attention: bool = figure(
        "flag", "the output of attention is multiplied by a gate, as wide as the queries", False
    )
    # sparse attention: an indexer picks the keys
    index_heads: int = figure("count", "heads of the indexer", 0)
    index_size: int = figure("count", "width of such a head", 0)
    index_top: int = figure("count", "keys that it selects for a query", 0)
    # encoder of an encoder-decoder
    encoder_layers: int = figure("count", "layers of the encoder", 0)
    encoder_seq: int = figure("count", "sequence of the encoder; 0: as the decoder's", 0)
    # images and video
    image: int = figure("count", "side of an image (or of its latent)", 0)
    frames: int = figure("count", "frames (of latents)", 1)
    patch: int = figure("count", "side of a patch", 0)
    channels: int = figure("count", "channels in", 3)
    out_channels: int = figure("count", "channels out; 0: as in", 0)
    classes: int = figure("count", "classes", 0)
    depths: tuple[int, ...] = figure("list", "blocks of each stage of a convnet", (), of=int)
    # recommendation
    tables: int = figure("count", "embedding tables", 0)
    table_rows: int = figure("count", "rows of a table", 0)
    table_width: int = figure("count", "width of an embedding", 0)
    pooling: int = figure("count", "rows looked up and added for a feature", 1)
    dense_features: int = figure("count", "numeric features", 0)
    bottom: tuple[int, ...] = figure("list", "widths of the bottom MLP", (), of=int)
    top: tuple[int, ...] = figure("list", "widths of the top MLP", (), of=int)
    # composed of parts; towers next to a decoder
    streams: tuple[TokenStream, ...] = figure(
        "list", "streams through the parts; the first follows the plan", (), of=TokenStream
    )
    blocks: tuple[Piece, ...] = figure("list", "parts from first to last", (), of=Piece)
    towers: tuple[Tower, ...] = figure("list", "image or audio networks next to a decoder", (), of=Tower)
    params: str = text("parameters as published, for the test that counts them")
    source: str = text("source of the shape")
    assumed: str = text("what was assumed about the shape, and why")

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            if getattr(self, name) > most:
                raise ClusterError(f"{name}: {getattr(self, name):,} is more than {most:,}")
        for name in _NEEDED[self.family]:
            if not getattr(self, name) and not (name in _HALVES and self._lacks(_HALVES[name])):
                raise ClusterError(f"a model of family `{self.family}` needs `{name}`")
        if self.heads and not self.head_size and self.hidden % self.heads:
            raise ClusterError(f"hidden {self.hidden} is not a multiple of {self.heads} heads", hint="give head_size")
        if self.heads and self.heads % self.kv:
            raise ClusterError(f"{self.heads} heads are not a multiple of {self.kv} heads of keys and values")
        if self.norms not in (1, 2, 4):
            raise ClusterError(f"a layer cannot have {self.norms} norms", hint="norms: 1, 2 or 4")
        for name, letters in (("mixers", Mixer), ("feeds", Feed)):
            wrong = set(getattr(self, name)) - {str(one) for one in letters}
            if wrong:
                raise ClusterError(f"{name}: `{min(wrong)}`", hint=f"letters: {', '.join(letters)}")
        if set(self.mixers) & {"m", "s", "d", "k"} and not (self.state and self.ssm_heads):
            raise ClusterError("layers with a state need `state` and `ssm_heads`")
        if self.experts and not 0 < self.top_k <= self.experts:
            raise ClusterError(f"top_k {self.top_k} of {self.experts} experts", hint="top_k: 2")

    def __repr__(self) -> str:
        experts = f", {self.experts} experts" if self.experts else ""
        return said(self, f"`{self.name}`: {self.family.value}, {self.layers} layers, hidden {self.hidden}{experts}")

    @property
    def kv(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def one_expert(self) -> int:
        """Weights of the matrices of a routed expert."""
        return (3 if self.gated else 2) * (self.expert_latent or self.hidden) * (self.expert_ffn or self.ffn)

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.head_size or self.hidden // self.heads

    def _lacks(self, half: Mixer | Feed) -> bool:
        """Whether no layer of a decoder has attention, or feed-forward."""
        letters = self.mixers if isinstance(half, Mixer) else self.feeds
        return self.family == Family.DECODER and bool(letters) and str(half) not in letters

    def mixer_of(self, layer: int) -> Mixer:
        return Mixer(self.mixers[layer % len(self.mixers)])

    def feed_of(self, layer: int) -> Feed:
        if self.feeds:
            return Feed(self.feeds[layer % len(self.feeds)])
        return Feed.EXPERTS if self.has_experts(layer) else Feed.DENSE

    def has_experts(self, layer: int) -> bool:
        return bool(self.experts) and layer >= self.dense_layers and (layer + 1) % self.moe_every == 0

    def window_of(self, layer: int) -> int:
        full = self.full_every and (layer + 1) % self.full_every == 0
        return self.window if layer % self.window_every == 0 and not full else 0

    def replace(self, **changes: Any) -> Model:
        return replace(self, **changes)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any], where: str = "model") -> Model:
        with usage_errors(where):
            return read(cls, given, where)


_HALVES: Final[dict[str, Mixer | Feed]] = {"heads": Mixer.ATTENTION, "ffn": Feed.DENSE}
_TRANSFORMER = ("layers", "hidden", "heads", "ffn")
_NEEDED = {
    Family.DECODER: (*_TRANSFORMER, "vocab"),
    Family.ENCODER: (*_TRANSFORMER, "vocab"),
    Family.ENCODER_DECODER: (*_TRANSFORMER, "vocab", "encoder_layers"),
    Family.VIT: (*_TRANSFORMER, "image", "patch", "classes"),
    Family.DIT: (*_TRANSFORMER, "image", "patch"),
    Family.DLRM: ("tables", "table_rows", "table_width", "dense_features", "bottom", "top"),
    Family.CONVNET: ("depths", "image", "classes"),
    Family.COMPOSED: ("streams", "blocks"),
}
