"""Passes of inference engines, from the annotations that they put around them.

    vLLM     execute_context_2(1024)_generation_14(14)
             execute_1038_context_2(sq1024sk2048sqsq..sqsk..)_generation_14(sq14sk9000sqsq14sqsk9000)
             execute_new_2_cached_14        a prompt may be read in several passes, so it is unknown whether
                                            the others prefill or decode: no phase unless all are new
    SGLang   step[EXTEND bs=2 toks=1024], step[DECODE bs=14], step[MIXED bs=16 c=2 g=14], step[mixed bs=16 ext=9 dec=14]
    ATOM     prefill[bs=1 tok=1024 ...], decode[bs=64 tok=64 ...]

A pass that reads prompts is `prefill`, one that makes tokens `decode`, one that does both `mixed`; drafts and their
verification, which make any number of tokens a pass, are `draft` and `verify`. Anything else has no phase.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from etude.capture.ingest.graph import CausalGraph
from etude.capture.link.device import DeviceTrace
from etude.capture.link.tree import call_tree
from etude.kernels.arrays import I64
from etude.model.schema import PASS, UNKNOWN, ValueKind
from etude.model.trace import Attr, Layout

_SIDE: Final = r"(\d{1,9})\((?:(\d{1,12})|sq(\d{1,12})sk(\d{1,15})[sqk\d]*)\)"
_VLLM: Final = re.compile(rf"execute_(?:\d+_)?context_{_SIDE}_generation_{_SIDE}")
_NEW: Final = re.compile(r"execute_new_(\d{1,9})_cached_(\d{1,9})")
_BRACKETS: Final = re.compile(r"(?:step\[(\w+)|(prefill|decode))\b ?\[?([^\[\]]*)\]")
_PAIR: Final = re.compile(r"(\w+)=(\d{1,15})")
_MODES: Final = {
    "extend": "prefill", "prefill": "prefill", "decode": "decode", "mixed": "mixed", "target_verify": "verify",
    "draft_extend": "draft", "draft_extend_v2": "draft",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass as described by an annotation; UNKNOWN if not said."""

    phase: str = ""
    context_requests: int = UNKNOWN
    """Requests whose prompt is read, at least in part."""
    context_tokens: int = UNKNOWN
    context_keys: int = UNKNOWN
    """Keys visible to these tokens, over requests."""
    generation_requests: int = UNKNOWN
    """Requests for which a token is made."""
    generation_tokens: int = UNKNOWN
    generation_keys: int = UNKNOWN
    new_requests: int = UNKNOWN


NUMBERS: Final = tuple(field.name for field in fields(Pass) if field.name != "phase")


def pass_of(name: str) -> Pass | None:
    """The pass of an annotation; None for other annotations."""
    if found := _VLLM.fullmatch(name):
        reads, read, read_q, read_k, makes, made, made_q, made_k = (int(n) if n else UNKNOWN for n in found.groups())
        read, made = (plain if plain != UNKNOWN else detailed for plain, detailed in ((read, read_q), (made, made_q)))
        return Pass(_phase(reads, makes), reads, read, read_k, makes, made, made_k)
    if found := _NEW.fullmatch(name):
        new, rest = int(found[1]), int(found[2])
        return Pass("prefill" if new and not rest else "", new_requests=new)
    found = _BRACKETS.fullmatch(name)
    mode = (found[1] or found[2]).lower() if found else ""
    return _in_brackets(_MODES[mode], found[3]) if found and mode in _MODES else None


def _phase(reads: int, makes: int) -> str:
    return "mixed" if reads and makes else "prefill" if reads else "decode" if makes else ""


def _in_brackets(phase: str, text: str) -> Pass:
    said = {key: int(value) for key, value in _PAIR.findall(text)}
    batch = said.get("bs", UNKNOWN)
    tokens = said.get("toks", said.get("tok", UNKNOWN))
    if phase == "prefill":
        return Pass(phase, batch, tokens, said.get("c_sk", said.get("sk", UNKNOWN)), 0, 0)
    if phase == "decode":
        return Pass(phase, 0, 0, UNKNOWN, batch, batch, said.get("g_sk", said.get("sk", UNKNOWN)))
    if phase != "mixed":
        return Pass(phase)
    makes = said.get("g", said.get("dec", UNKNOWN))
    reads = said.get("c", batch - makes if batch != UNKNOWN and makes != UNKNOWN else UNKNOWN)
    read, made = said.get("c_sq", said.get("ext", UNKNOWN)), said.get("g_sq", makes)
    return Pass(phase, reads, read, said.get("c_sk", UNKNOWN), makes, made, said.get("g_sk", UNKNOWN))


@dataclass(frozen=True, slots=True, eq=False)
class EnginePasses:
    """Annotations around passes, by start; the outer one if nested."""

    row: I64
    """Row of the device trace."""
    what: tuple[Pass, ...]

    def __len__(self) -> int:
        return len(self.row)

    def cells(self, device: DeviceTrace, found: CausalGraph) -> dict[int, tuple[Layout, list[int]]]:
        """Node of each annotation -> attributes, and their values."""
        event = {int(row): k for k, row in enumerate(found.host.row.tolist())} if len(self) else {}
        made: dict[int, tuple[Layout, list[int]]] = {}
        for row, one in zip(self.row.tolist(), self.what, strict=True):
            said = {name: getattr(one, name) for name in NUMBERS if getattr(one, name) != UNKNOWN}
            if row in event and said:
                attrs = tuple(Attr(PASS + name, ValueKind.INT64) for name in said)
                made[int(found.row_of_event[event[row]])] = attrs, list(said.values())
        return made


def engine_passes(device: DeviceTrace) -> EnginePasses:
    """The passes of a device trace; none without such annotations."""
    known = {number: one for number, name in enumerate(device.names) if (one := pass_of(name)) is not None}
    if not known:
        return EnginePasses(np.zeros(0, np.int64), ())
    is_pass = np.zeros(len(device.names) + 1, np.bool_)
    is_pass[list(known)] = True
    tree = call_tree(device, is_pass[device.name] & device.is_category("user_annotation"))
    row = tree.row[tree.parent < 0]
    row = row[np.argsort(device.start_ns[row], kind="stable")]
    return EnginePasses(row, tuple(known[code] for code in device.name[row].tolist()))
