"""Tokens per second by the budget of a client GPU's memory, against a published table.

python benchmarks/validate_pipeshard.py [../shared/measured/pipeshard_table4.csv]

The rows go through what `etude ops place` gives, and through `search: memory` of `etude search` (tensors instead of
fractions, with products, copies and hops; first tokens too). Assumed, since the table says neither: an RTX 5090 and a
desktop with two channels of DDR5-5600, as the catalogue has them; the 8B model with the shape of Llama 3 8B; the Nemo
models in bf16, the Qwen models at 4.5 bits a weight, keys and values in bf16; 0.5 GB of buffers. Rates are not tuned:
the order of the budgets and the place of the knee are compared. The knee is the least budget with nine tenths of the
tokens per second of the largest.
"""

from __future__ import annotations

import csv
import sys
from functools import cache
from pathlib import Path
from statistics import median

from etude.cost.tiers.placing import StoredPart
from etude.decide.search import SearchRequest, solve
from etude.decide.search.request import SpaceFile
from etude.machine import open_device
from etude.make.generate.model import open_model
from etude.steps.placing import parts_of, tokens_by_room

SHARED = Path(__file__).resolve().parent.parent.parent / "shared/measured/pipeshard_table4.csv"
# name: model of the catalogue, bits of a weight
MODELS = {
    "nemo-4b": ("", 16.0),
    "nemo-8b": ("llama3-8b", 16.0),
    "qwen-30b": ("qwen3-30b-a3b", 4.5),
    "qwen-235b": ("qwen3-235b-a22b", 4.5),
}
NEMO_4B = (4.19e9 * 2, 32 * 8 * 128 * 4)
"""Not in the catalogue: bytes of its weights, and of keys and values of a token."""


@cache
def parts(model: str, context: int) -> list[StoredPart]:
    name, bits = MODELS[model]
    if name:
        return parts_of(open_model(name), context, bits)
    return [StoredPart(name="weights", size_bytes=NEMO_4B[0]), StoredPart(name="kv", size_bytes=NEMO_4B[1] * context)]


def tokens_per_s(model: str, context: int, budget_bytes: float) -> float:
    gpu, host = open_device("rtx5090"), open_device("desktop")
    return tokens_by_room(parts(model, context), gpu, host, [budget_bytes])[0]["tokens_per_s"]


def searched(model: str, context: int, rows: list[dict[str, str]]) -> list[dict[str, float]]:
    """The exact search, by tokens a second."""
    name, bits = MODELS[model]
    keys = {
        "model": name,
        "bits": bits,
        "prompt": context,
        "score": "tokens",
        "vram": [f"{r['VramMB']}MiB" for r in rows],
    }
    return solve(SpaceFile(kind="memory", keys=keys, where=model), SearchRequest()).rows


def ranks(values: list[float]) -> list[float]:
    """Mean ranks; values that differ by less than 1% are alike."""
    return [sum((b < a * 0.99) + (0.5 if abs(b - a) <= 0.01 * a else 0.0) for b in values) for a in values]


def correlation(a: list[float], b: list[float]) -> float:
    x, y = ranks(a), ranks(b)
    mx, my = sum(x) / len(x), sum(y) / len(y)
    top = sum((p - mx) * (q - my) for p, q in zip(x, y, strict=True))
    return top / (sum((p - mx) ** 2 for p in x) * sum((q - my) ** 2 for q in y)) ** 0.5


def knee(values: list[float]) -> int:
    return next(i for i, v in enumerate(values) if v >= 0.9 * values[-1])


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else SHARED
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in csv.DictReader(path.open()):
        groups.setdefault((row["Model"], row["CtxSize"]), []).append(row)
    least, apart, ratios = 1.0, 0, []
    for (model, context), rows in groups.items():
        measured = [float(r["TPS"]) for r in rows]
        found = [tokens_per_s(model, int(context[:-1]) * 1024, float(r["VramMB"]) * 2**20) for r in rows]
        r, steps = correlation(measured, found), abs(knee(measured) - knee(found))
        least, apart = min(least, r), max(apart, steps)
        ratios += [f / m for f, m in zip(found, measured, strict=True)]
        print(f"{model:<10}{context:>4}  rank correlation {r:.3f}, knees {rows[knee(measured)]['Vram']:>3} and "
              f"{rows[knee(found)]['Vram']:>3}  measured {' '.join(f'{m:6.1f}' for m in measured)}  "
              f"predicted {' '.join(f'{f:6.1f}' for f in found)}")  # fmt: skip
    print(f"least rank correlation {least:.3f}, knees {apart} steps apart at most; "
          f"predicted over measured {median(ratios):.2f} in the median")  # fmt: skip
    by_search(groups)


def by_search(groups: dict[tuple[str, str], list[dict[str, str]]]) -> None:
    least, apart, ratios, firsts = 1.0, 0, [], []
    for (model, context), rows in groups.items():
        if not MODELS[model][0]:
            continue
        found = searched(model, int(context[:-1]) * 1024, rows)
        measured, rates = [float(r["TPS"]) for r in rows], [row["tokens_per_s"] for row in found]
        least, apart = min(least, correlation(measured, rates)), max(apart, abs(knee(measured) - knee(rates)))
        ratios += [f / m for f, m in zip(rates, measured, strict=True)]
        firsts += [row["ttft_ms"] / float(r["TTFT(msec)"]) for row, r in zip(found, rows, strict=True)]
        shown = " ".join(f"{f:6.1f}" for f in rates), " ".join(f"{row['ttft_ms']:6.0f}" for row in found)
        print(f"{model:<10}{context:>4}  search: memory  {shown[0]} tokens/s, first token {shown[1]} ms")
    print(f"search: memory: least rank correlation {least:.3f}, knees {apart} steps apart at most; predicted over "
          f"measured {median(ratios):.2f} in the median, first tokens {median(firsts):.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
