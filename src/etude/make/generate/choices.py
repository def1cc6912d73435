"""What a plan chooses from."""

from enum import StrEnum
from typing import Final


class ContextKind(StrEnum):
    RING = "ring"
    ALL_GATHER = "all_gather"
    ULYSSES = "ulysses"


class ContextMap(StrEnum):
    """Which context-parallel rank has which tokens, with keys sent only to the ranks that read them, or in a ring to
    all; see maps/packing.py."""

    NONE = "none"
    CONTIGUOUS = "contiguous"
    ZIGZAG = "zigzag"
    RING = "ring"
    LPT = "lpt"
    WHOLE_FIRST = "whole_first"
    SEARCH = "search"


class Precision(StrEnum):
    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    FP8 = "fp8"
    """Products of layers in 8 bits, the rest in bf16."""
    FP4 = "fp4"
    """Products of layers in 4 bits, the rest in bf16."""


class Dispatch(StrEnum):
    """In which data type tokens are sent to their experts; sums come back in that of activations."""

    PRODUCTS = "products"
    """In the type of the experts' products: with fp8 in 8 bits, cast before sending (DeepSeek-V3)."""
    ACTIVATIONS = "activations"
    """In the type of activations, cast on arrival."""


class Scaling(StrEnum):
    """Where the scales of 8-bit products come from; see blocks/shard.py."""

    DELAYED = "delayed"
    """One per tensor, from the previous steps."""
    CURRENT = "current"
    """One per tensor, from its own maximum, which is computed before the cast."""
    BLOCK = "block"
    """4 bytes per 128 consecutive elements, for weights per 128 x 128 (DeepSeek-V3)."""
    MX = "mx"
    """One byte per 32 consecutive elements (MXFP8)."""


class Optimizer(StrEnum):
    """What updates the weights; see train/optimizer.py."""

    ADAMW = "adamw"
    ADAMW_8BIT = "adamw_8bit"
    ADAFACTOR = "adafactor"
    MUON = "muon"
    MOMENTUM = "momentum"
    SGD = "sgd"


class Attention(StrEnum):
    FLASH = "flash"
    UNFUSED = "unfused"


class Batching(StrEnum):
    """How samples of different length are batched into micro-batches."""

    FIXED = "fixed"
    """Equally many samples in each, without padding."""
    PADDED = "padded"
    """Equally many samples in each, all padded to the longest."""
    TOKENS = "tokens"
    """As many as fit a budget of tokens."""
    PADDED_TOKENS = "padded_tokens"
    """As many as fit the budget once all are padded to the longest."""
    COMPUTE = "compute"
    """As many as have the work of the usual micro-batch; with a power, samples x longest^power."""
    ONLINE = "online"
    """Of the waiting samples, the oldest and those nearest to it in length, padded, within the budget."""
    PACKED = "packed"
    """Documents concatenated in sequences of the usual length; attention only within each document."""


BY_BUDGET: Final = (Batching.TOKENS, Batching.PADDED_TOKENS, Batching.COMPUTE, Batching.ONLINE)
"""Those that fill a micro-batch up to a budget."""
