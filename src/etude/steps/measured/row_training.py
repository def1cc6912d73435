"""What a row trains: all weights, adapters beside frozen ones, or some layers.

The column `train` says it as a plan does (`all`, `lora:16`, `layers:24..`, `frozen`) or as tables do (`pretrain`,
`full`, `sft`, `lora`); without one, words in the name of the model, of the stack or of the metric, or in the notes.
With adapters there are no gradients of frozen weights: neither their products, nor their reduction, nor their update.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from etude.base.errors import UsageError
from etude.steps.measured.row_figures import whole
from etude.steps.measured.row_words import ABSENT

RANK: Final = 16
"""Rank of adapters where a row says none: an assumption."""
QKV: Final = ("megatron",)
"""Families of stacks whose adapters are taken to be on queries, keys and values alone, as in public recipes of
Megatron-Bridge; those of others on every product: an assumption."""
ALL: Final = re.compile(r"all|(full )?(sft|fine-?tun(e|ing))|full|pre-?train(ing)?")
"""How tables call training of every weight."""
_RANK: Final = re.compile(r"\b(?:rank\s*[=:]?|r\s*[=:])\s*(\d+)\b", re.IGNORECASE)
_QUANTISED: Final = re.compile(r"\bq-?lora\b", re.IGNORECASE)
_LORA: Final = re.compile(r"\b(lora|peft)\b", re.IGNORECASE)
_FROZEN: Final = re.compile(r"\bfrozen\b", re.IGNORECASE)
_OTHER: Final = re.compile(rf"({ABSENT})?\b(dpo|rlhf|grpo|ppo|distillation)\b", re.IGNORECASE)
_FULL: Final = re.compile(r"\b(sft|fine-?tun(?:e|ed|ing))\b", re.IGNORECASE)
_COLUMN: Final = "column train: all, lora:16, layers:24.., frozen"


def trained_fields(row: Mapping[str, str], family: str, said: list[str]) -> dict[str, Any]:
    """Fields of a plan for what a row trains with a stack of this family; refuses what is not priced."""
    column = row.get("train", "").strip().lower()
    names = " ".join(row.get(key, "") for key in ("model", "stack", "measured_metric"))
    text = column or f"{names} {row.get('notes', '')}"
    if _QUANTISED.search(text):
        raise UsageError("QLoRA is not priced: its frozen weights are unpacked from 4 bits for each product")
    if found := next((one[2] for one in _OTHER.finditer(text) if not one[1]), ""):
        raise UsageError(f"a step of {found} is more than one pass of one model, which `etude predict sections` prices")
    if ALL.fullmatch(column):
        return {}
    if column.partition(":")[0] in ("layers", "frozen", "forward") or re.fullmatch(r"lora:\d+(:\w+)?", column):
        return {"train": column} | _in_one_piece(column, said)
    if _LORA.search(text):
        return _adapters(row, family, said)
    if column or _FROZEN.search(names):
        raise UsageError(f"what `{column or names.strip()}` trains is not known: {_COLUMN}")
    if _FULL.search(names):
        said.append("fine-tuning of all weights, over whole sequences")
    return {}


def _adapters(row: Mapping[str, str], family: str, said: list[str]) -> dict[str, Any]:
    given = row.get("lora_rank", "").strip()
    found = _RANK.search(f"{row.get('train', '')} {row.get('notes', '')}")
    rank = whole(row, "lora_rank") if given else int(found[1]) if found else RANK
    where, adapted = ("queries, keys and values", ":qkv") if family in QKV else ("every product of a layer", "")
    said.append(f"adapters of rank {rank} on {where}; other weights are frozen")
    return {"train": f"lora:{rank}{adapted}"} | _in_one_piece("lora", said)


def _in_one_piece(train: str, said: list[str]) -> dict[str, Any]:
    """Products with adapters are not cut into pieces that overlap collectives."""
    if not train.startswith("lora"):
        return {}
    said.append("tensor-parallel collectives do not overlap products, which have adapters")
    return {"tp_chunks": 1}
