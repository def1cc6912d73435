"""The files that the commands of the pages speak of, under the names that all pages use.

`run/` is the embedded recording, `job/` a small generated job; request logs and tables of public data are short
stand-ins in the same format.
"""

import contextlib
import gzip
import io
import os
import re
import shlex
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SMALL = "--gpus 16 --tp 2 --pp 2 --global-batch 32 --seq 256"
MADE = (
    f"generate gpt2 {SMALL} -o untimed",
    'edit untimed -o job "speed by=1" --times-on dgx-h100',
    "generate gpt2 --gpus 8 --tp 2 --global-batch 8 --seq 256 -o a",
    "generate micro all_reduce --ranks 8 --bytes 1MB -o micro",
    "convert micro astra --to astra --system dgx-h100",
)
"""Commands that make what no file holds."""

COPIES = {
    "run": ("before", "after", "base", "new"),
    "a": ("b",),
    "trace.json.gz": ("kineto.json.gz", "before.json.gz", "after.json.gz", "small_batch.kineto.json.gz",
                      "large_batch.kineto.json.gz"),
}  # fmt: skip
LINKS = {"examples": "examples", "benchmarks": "benchmarks", "sample": "src/etude/capture/sample"}

CONFIG = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
"num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
"max_position_embeddings": 4096, "tie_word_embeddings": false}
"""
TEXT_WORKLOAD = """DATA
2
conv1  -1  130  NONE 0   120  NONE 0   320  ALLREDUCE 37632  32
conv2  -1   34  NONE 0    36  NONE 0    75  ALLREDUCE 65536   7
"""
PLAN = "gpus: 16\ntp: 2\npp: 2\nglobal_batch: 16\nseq: 1024\n"
MODEL = "family: decoder\nlayers: 8\nhidden: 1024\nheads: 16\nffn: 4096\nvocab: 32000\n"


def stage(folder: Path) -> Path:
    """Makes all of them in `folder`."""
    from etude.surface.cli import main

    folder.mkdir(parents=True, exist_ok=True)
    for name, place in LINKS.items():
        (folder / name).symlink_to(ROOT / place)
    if traces := captures():
        (folder / "traces").symlink_to(traces)
    sample = ROOT / "src" / "etude" / "capture" / "sample"
    shutil.copytree(sample, folder / "run")
    shutil.copy(sample / "gpt.rank0.kineto.json.gz", folder / "trace.json.gz")
    shutil.copy(sample / "gpt.rank0.et.json.gz", folder / "host.json.gz")
    said = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        for line in MADE:
            if main(shlex.split(line)):
                raise AssertionError(f"`etude {line}`: {said.getvalue()[-2000:]}")
    for name, others in COPIES.items():
        for other in others:
            copy = shutil.copytree if (folder / name).is_dir() else shutil.copy
            copy(folder / name, folder / other)
    _astra(folder)
    for name, text in {**_texts(), **_tables()}.items():
        opened = gzip.open if name.endswith(".gz") else open
        with opened(folder / name, "wt") as file:
            file.write(text)
    return folder


def captures() -> Path | None:
    """Where the captures of the case study are, if they are here."""
    shared = Path(os.environ.get("ETUDE_SHARED") or ROOT.parent / "shared")
    return found if (found := shared.resolve() / "traces" / "h200_pairs").is_dir() else None


def _astra(folder: Path) -> None:
    """ASTRA-sim's files of a micro-benchmark, under the names that its users give them."""
    for path in (folder / "astra").glob("*.et"):
        shutil.copy(path, folder / f"w.{path.name.split('.')[-2]}.et")
    shutil.copy(folder / "astra" / "network.yml", folder / "net.yml")
    shutil.copy(folder / "astra" / "system.json", folder / "sys.json")


def _texts() -> dict[str, str]:
    machines = (ROOT / "docs" / "machines.md").read_text()
    cluster = re.search(r"```yaml\n(name: my-cluster\n.*?)```", machines, re.S)
    assert cluster is not None
    return {
        "my-cluster.yaml": cluster[1],
        "config.json": CONFIG,
        "model.yaml": MODEL,
        "mine.yaml": MODEL,
        "plan.yaml": PLAN,
        "w.txt": TEXT_WORKLOAD,
    }


def _tables() -> dict[str, str]:
    times = [f"2023-11-16 18:{15 + i // 60:02d}:{i % 60:02d}.6805900" for i in range(0, 120, 2)]
    azure = [f"{time},{300 + 37 * i % 900},{20 + 13 * i % 90}" for i, time in enumerate(times)]
    mooncake = [f'{{"timestamp": {i * 500}, "input_length": 1024, "output_length": 40, "hash_ids": [0, {i % 7 + 1}]}}'
                for i in range(40)]  # fmt: skip
    pods = [f"openb-pod-{i:04d},6000,12288,1,1000,,LS,Running,{60 * i},{60 * i + 900},{60 * i}" for i in range(40)]
    edges = [f"{i},{(7 * i + k) % 400}" for i in range(400) for k in (1, 2, 3)]
    images = [f"{4 * i},480,832,20,33" for i in range(6)]
    return {
        "azure_2023_conv.csv": _csv("TIMESTAMP,ContextTokens,GeneratedTokens", azure),
        "mooncake_conversation.jsonl.gz": "\n".join(mooncake) + "\n",
        "alibaba_2023_pods.csv": _csv("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
                                      "creation_time,deletion_time,scheduled_time", pods),
        "edges.csv": _csv("source,target", edges),
        "dit.csv": _csv("arrival,height,width,steps,frames", images),
    }  # fmt: skip


def _csv(head: str, rows: list[str]) -> str:
    return "\n".join([head, *rows]) + "\n"
