"""Files that the examples of `simulate`, `predict`, `plan` and `generate` name."""

import json
import shutil
from pathlib import Path

SECTIONS = Path(__file__).resolve().parent.parent.parent / "examples" / "sections"
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "hidden_size": 256,
    "num_attention_heads": 8, "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 1024,
}  # fmt: skip


def make(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "plan.yaml").write_text("micro_batch: 2\nrecompute: full\n")
    (folder / "fp8.yaml").write_text("gpus: 4\nprecision: fp8\n")
    for name, source in (("distill", "distill"), ("vision", "vision"), ("joint", "vision-joint")):
        shutil.copy(SECTIONS / f"{source}.yaml", folder / f"{name}.yaml")
