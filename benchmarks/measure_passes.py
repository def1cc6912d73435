"""Passes of causal language models of transformers on a GPU: what `etude serve --program` predicts without one.

    python benchmarks/measure_passes.py -o passes.csv       # on a machine with a GPU, PyTorch and transformers

Shapes of Llama 3.2 1B, Qwen3 0.6B and GPT-2 XL with random weights, eager, in bf16. Of each pass (sequences, new tokens
of each, tokens in the cache) the table has the median time from call to result of `TIMES` passes, and the median sum of
its kernels and copies (`torch.profiler`, activities of the device alone).
"""

import argparse
import copy
import csv
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

TIMES, PROFILED = 10, 3
POINTS = (
    (1, 128, 0), (1, 512, 0), (1, 2048, 0), (1, 8192, 0), (16, 16, 0), (128, 16, 0),
    (1, 1, 1024), (16, 1, 1024), (64, 1, 1024), (256, 1, 1024), (1, 1, 4096), (16, 1, 4096), (64, 1, 4096),
    (1, 256, 1024), (1, 2048, 4096),
)  # fmt: skip
"""Sequences, new tokens of each, tokens in the cache."""
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256,
        "max_position_embeddings": 131072, "tie_word_embeddings": True, "dtype": "bfloat16",
    },
    "qwen3": {
        "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
        "max_position_embeddings": 40960, "tie_word_embeddings": True, "dtype": "bfloat16",
    },
    "gpt2": {
        "model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 16384, "vocab_size": 50257,
        "dtype": "bfloat16",
    },
}  # fmt: skip


def model_of(config: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    given = AutoConfig.for_model(**config)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(given, dtype=torch.bfloat16)
    return model.eval()


def filled(model: Any, batch: int, past: int) -> Any:
    """A cache with that many tokens of each sequence; None if there are none."""
    if not past:
        return None
    cache = None
    for _ in range(past // 1024):
        words = torch.zeros(batch, 1024, dtype=torch.int64, device="cuda")
        cache = model(input_ids=words, past_key_values=cache, use_cache=True, logits_to_keep=1).past_key_values
    return cache


def measured(model: Any, batch: int, tokens: int, past: int) -> tuple[float, float, int]:
    """(Seconds from call to result, seconds of kernels and copies, their number) of a pass."""
    words, kept = torch.zeros(batch, tokens, dtype=torch.int64, device="cuda"), filled(model, batch, past)

    def once() -> float:
        cache = copy.deepcopy(kept)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        model(input_ids=words, past_key_values=cache, use_cache=True, logits_to_keep=1)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    for _ in range(3):
        once()
    walls = sorted(once() for _ in range(TIMES))
    sums = []
    for _ in range(PROFILED):
        cache = copy.deepcopy(kept)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            model(input_ids=words, past_key_values=cache, use_cache=True, logits_to_keep=1)
            torch.cuda.synchronize()
        kernels = [event for event in seen.events() if event.device_time > 0]
        sums.append((sum(event.device_time for event in kernels) / 1e6, len(kernels)))
    return walls[TIMES // 2], *sorted(sums)[PROFILED // 2]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("-o", "--out", type=Path, required=True)
    given = asked.parse_args()
    with given.out.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["model", "config", "device", "batch", "tokens", "past", "pass_s", "kernels_s", "kernels"])
        for name, config in CONFIGS.items():
            model = model_of(config)
            for point in POINTS:
                with torch.inference_mode():
                    try:
                        found = measured(model, *point)
                    except torch.cuda.OutOfMemoryError:
                        continue
                about = (name, json.dumps(config), torch.cuda.get_device_name())
                rows.writerow([*about, *point, f"{found[0]:.6f}", f"{found[1]:.6f}", found[2]])
                print(name, point, found, flush=True)
            del model
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
