"""What only kernel names say: which units a product ran on, and whether attention is causal."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["is_causal", "is_tf32"]

_TF32: Final = re.compile(r"tf32|xf32|(?<![a-z0-9])s1688|\bnvjet_sm\d+_s[a-z]{2}_", re.IGNORECASE)
"""`s1688` is the tensor-core instruction of CUTLASS and cuBLAS that takes tf32 (of 4-byte inputs; 2-byte ones have it
too). nvjet kernels run only on tensor cores, and `s` is 4-byte input. xf32 is AMD's."""
_FLASH: Final = re.compile(
    r"\bflash_(fwd|bwd)\w*_kernel<.*[> ]\s*,\s*((?:(?:true|false)\s*,\s*)*(?:true|false))\s*>\s*\("
)
"""FlashAttention 2: flags follow the traits; the second one is causal, for split keys the first."""


def is_tf32(name: str) -> bool:
    """Does a kernel of 4-byte inputs compute its products in tf32 (10 bits of mantissa)?"""
    return bool(_TF32.search(name))


def is_causal(name: str) -> bool | None:
    """Is the attention that a kernel computes causal? None where its name does not say."""
    found = _FLASH.search(name)
    if found is None or "dot_do_o" in name or "convert" in name or "combine" in name:
        return None
    flags = [flag.strip() == "true" for flag in found[2].split(",")]
    place = 0 if "splitkv" in name else 1
    return flags[place] if place < len(flags) else None
