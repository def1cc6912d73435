"""What Etude says of programs on a CPU, against steps that were timed without a profiler: six of one process, four of
two (gloo).

    ETUDE_FOREIGN=packages/ python benchmarks/program_times_cpu.py -o recorded/ [--only gpt2 gpt2_ranks] [--again]

Programs are models of `transformers` as its users write them, with random weights; `ETUDE_FOREIGN` is a folder with
that package where it is not installed. Each is recorded in a process of its own, with steps timed just before and just
after; then `program_times.py` compares, un-profiled steps withheld (`no anchor`) and not. `--again` compares what
`recorded/` holds already.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from program_times import error, figures, told

from etude.capture.ingest.runs import WantedTimes

STEPS = 12
SMALL = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}


def _causal(kind: str, batch: int, length: int, **config: Any) -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{kind}Config")(**config))
    ids = torch.randint(0, model.config.vocab_size, (batch, length))
    return model, {"input_ids": ids, "labels": ids}


def gpt2() -> tuple[Any, dict[str, Any]]:
    return _causal("GPT2", 2, 128, n_embd=192, n_layer=4, n_head=4, vocab_size=4000)


def llama() -> tuple[Any, dict[str, Any]]:
    return _causal("Llama", 2, 64, vocab_size=4000, num_key_value_heads=2, **SMALL)


def mixtral() -> tuple[Any, dict[str, Any]]:
    return _causal("Mixtral", 2, 64, vocab_size=4000, num_key_value_heads=2, num_local_experts=4, **SMALL)


def bert() -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import BertConfig, BertForMaskedLM

    ids = torch.randint(0, 4000, (4, 64))
    return BertForMaskedLM(BertConfig(vocab_size=4000, **SMALL)), {"input_ids": ids, "labels": ids}


def t5() -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=128, d_ff=512, d_kv=32, num_layers=3, num_heads=4, decoder_start_token_id=0)
    ids = torch.randint(0, 4000, (2, 64))
    return T5ForConditionalGeneration(config), {"input_ids": ids, "labels": ids[:, :32].contiguous()}


def vit() -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(image_size=64, patch_size=8, num_labels=100, **SMALL))
    return model, {"pixel_values": torch.randn(4, 3, 64, 64), "labels": torch.randint(0, 100, (4,))}


ONE: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {f.__name__: f for f in (gpt2, llama, mixtral, bert, t5)}
"""And `gpt2_generate`."""
TWO = {f"{f.__name__}_ranks": f for f in (gpt2, llama, bert, vit)}
NAMES = (*ONE, "gpt2_generate", *TWO)


def training_step(name: str) -> Callable[[], Any]:
    import torch

    model, given = (ONE | TWO)[name]()
    model.train()
    run = torch.nn.parallel.DistributedDataParallel(model) if name in TWO else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        loss = run(**given).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _generating() -> Callable[[], Any]:
    import torch

    model, given = gpt2()
    model.eval()
    ids = given["input_ids"][:, :16]

    def step() -> None:
        with torch.no_grad():
            model.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0)

    return step


def _timed_ns(step: Callable[[], Any]) -> int:
    """The median: a machine whose cores others use has long steps."""
    took = []
    for _ in range(STEPS):
        since = time.perf_counter_ns()
        step()
        took.append(time.perf_counter_ns() - since)
    return int(statistics.median(took))


def record(name: str, folder: Path) -> None:
    """In this process, or as one rank of two."""
    import torch

    from etude.capture.collect.torch import trace

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if name in TWO:
        torch.distributed.init_process_group("gloo")
    step = _generating() if name == "gpt2_generate" else training_step(name)
    for _ in range(5):
        step()
    before = _timed_ns(step)
    with trace(folder, steps=3, warmup=6, detect_steps=False) as recording:
        for _ in range(32):
            step()
            recording.step()
    after = _timed_ns(step)
    if os.environ.get("RANK", "0") == "0":
        (folder / "reference.json").write_text(json.dumps({"name": name, "before_ns": before, "after_ns": after}))
    if name in TWO:
        torch.distributed.destroy_process_group()


def _start(name: str, out: Path) -> None:
    """A process for each rank."""
    size = 2 if name in TWO else 1
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    around = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(size)}
    path = [os.environ.get("ETUDE_FOREIGN", ""), os.environ.get("PYTHONPATH", "")]
    around["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    command = [sys.executable, __file__, "-o", str(out), "--one", name]
    ranks = [subprocess.Popen(command, env=around | ({"RANK": str(r)} if size > 1 else {})) for r in range(size)]
    codes = [one.wait() for one in ranks]
    if any(codes):
        sys.exit(f"{name}: was not recorded")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES)
    parser.add_argument("--again", action="store_true", help="compare what is there")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        record(given.one, given.out / given.one)
        return
    ways = {
        "recorded": WantedTimes(as_recorded=True),
        "no anchor": WantedTimes(anchor=False),
        "anchored": WantedTimes(),
    }
    found: dict[str, list[float]] = {f"{way}, {kind}": [] for kind in ("one", "two") for way in ways}
    print(f"{'program':<16}{'before':>9}{'after':>9}" + "".join(f"{way:>18}" for way in ways))
    for name in given.only:
        if not given.again:
            _start(name, given.out)
        reference = json.loads((given.out / name / "reference.json").read_text())
        before, after = reference["before_ns"], reference["after_ns"]
        cells = f"{name:<16}{before / 1e6:>9.2f}{after / 1e6:>9.2f}"
        for way, times in ways.items():
            step = figures(given.out / name, times)["step_ns"]
            wrong = error(step, before, after)
            found[f"{way}, {'two' if name in TWO else 'one'}"].append(abs(wrong))
            cells += f"{step / 1e6:>10.2f}{wrong:>+8.1%}"
        print(cells, flush=True)
    for name, errors in found.items():
        if errors:
            print(told(name, errors))


if __name__ == "__main__":
    main()
