"""What words of a row say of its plan: its notes, and its column `recompute`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

NEAR: Final = "near"
"""Of `ep_node` in a recipe, or of a dispatcher in notes: a token goes once to each innermost level of the network."""
PAIRED: Final = "paired"
"""Of a recipe, or in notes: a forward runs together with a backward of another micro-batch, so that the exchanges of
experts of one overlap the products of the other."""
DOMAIN: Final = {"deepep": NEAR, "hybridep": NEAR, "a2a": 0, "alltoall": 0, "all-to-all": 0}
"""Dispatchers of tokens, and to what a token is sent once; 0: every copy is sent."""
UNSAID: Final = re.compile(r"(none|not) (stated|said|given|known)|unknown|n/?a|\?|-|/", re.IGNORECASE)
ABSENT: Final = r"(?:no|not|non|without|w/o|instead of)[ -]"
"""Words that deny what they stand before."""
_SHARDED: Final = re.compile(rf"({ABSENT})?\b(FSDP\d?|FULL_SHARD)\b(\s*[:=]?\s*(?:off|no|none|false|/|0|-)(?!\w))?")
_ZERO: Final = re.compile(rf"({ABSENT})?\bZeRO[ -]?([0-3])", re.IGNORECASE)
_ASYNC: Final = re.compile(rf"({ABSENT})?\basync[ -]?TP\b", re.IGNORECASE)
_PAIRED: Final = re.compile(r"\b(?:1f1b|a2a|all-?to-?all|ep(?: comm\w*)?) overlap", re.IGNORECASE)
_DROPPED: Final = re.compile(r"\btoken[- ]?drop(?:ped|ping)?\b", re.IGNORECASE)
_EAGER: Final = re.compile(r"\beager\b", re.IGNORECASE)
_DISPATCHER: Final = re.compile(rf"\b({'|'.join(DOMAIN)})\b", re.IGNORECASE)
_PARTS: Final = (
    ("norm", r"(layer|rms)?[ _-]?norms?"),
    ("activation", r"(moe[ _-]?)?act(ivations?)?|swiglu|gelu"),
    ("experts", r"moe|experts?|moe[ _-]layers?"),
    ("latent", r"(mla[ _-])?up[ _-]proj(ections?)?|mla|latent"),
    ("ffn", r"mlp|ffn|feed[ -]?forward"),
    ("attention", r"(core[ _-])?att(entio)?n|core"),
)
"""Parts that a plan recomputes -> how tables and flags of Megatron call them."""
_KINDS: Final = ("full", "selective", "none")


def noted_fields(notes: str, *, tp: int, gated: bool, stack: str = "") -> dict[str, Any]:
    """Fields of a plan that notes give, or how weights are sharded the name of the stack; what they say to be absent
    is."""
    found = _sharded(notes) or _sharded(stack.upper())
    if (way := _ASYNC.search(notes)) and not way[1] and tp > 1:
        found["tp_chunks"] = tp
    if _EAGER.search(notes) and gated:
        found["unfused"] = "activation,norm"
    if _DROPPED.search(notes):
        found["capacity"] = 1.0
    if _PAIRED.search(notes):
        found[PAIRED] = True
    if way := _DISPATCHER.search(notes):
        found["ep_node"] = DOMAIN[way[1].lower()]
    return found


def _sharded(text: str) -> dict[str, Any]:
    if (zero := _ZERO.search(text)) and not zero[1]:
        return {"zero": int(zero[2])}
    return {"zero": 3} if any(not (one[1] or one[3]) for one in _SHARDED.finditer(text)) else {}


def recompute_fields(text: str, policies: Mapping[str, str], said: list[str]) -> dict[str, Any]:
    """The kind of recomputation that a row's text says: a word of its stack, a kind, or parts by name. Nothing where
    it says none, or is not known, which `said` gets."""
    again = text.strip().lower()
    if not again or UNSAID.fullmatch(again):
        return {}
    if again in policies:
        said.append(f"`{again}` recomputation is {policies[again]}")
        return {"recompute": policies[again]}
    kind, _, rest = again.partition(" ")
    kind, names = kind.rstrip(",;:"), re.split(r"[,;+&/]| and ", rest.strip("() ") if kind in _KINDS else again)
    parts = [next((part for part, way in _PARTS if re.fullmatch(way, name.strip())), "") for name in names]
    if any(parts) and kind != "full":
        known = ",".join(dict.fromkeys(part for part in parts if part))
        if left := [name.strip() for name, part in zip(names, parts, strict=True) if not part]:
            said.append(f"of what is recomputed, {', '.join(f'`{name}`' for name in left)} is not priced")
        return {"recompute": f"selective:{known}"}
    if found := next((k for k in _KINDS if again.startswith(k)), ""):
        return {"recompute": found}
    said.append(f"recomputation `{text}` is not known: as if it said nothing")
    return {}
