"""Files of the examples of `etude score`."""

from pathlib import Path

import pyarrow as pa

from etude.cost.opdb import add_rows
from etude.cost.opdb.database import SCHEMA
from etude.cost.opdb.schema import COLUMNS, DIMS
from score_files import BENCH, NCCL_TESTS, OFFLOAD, OPERATORS, SERVING, TRAINING, vllm_folder

POINT = {
    "device": "h100", "backend": "torch", "op": "linear", "dtype": "bf16", **dict.fromkeys(DIMS, 0), "n": 64, "k": 32,
    "tokens": 8, "time_us": 10.0, "repeat": 0, "source": "test",
}  # fmt: skip


def make(folder: Path) -> None:
    measured = folder / "measured"
    (measured / "profile").mkdir(parents=True, exist_ok=True)
    (measured / "h200_extra" / "offload").mkdir(parents=True)
    (measured / "h200_extra" / "offload" / "copies.csv").write_text(OFFLOAD)
    (measured / "published_train.csv").write_text(TRAINING)
    (measured / "ml_energy_llm.csv").write_text(SERVING)
    vllm_folder(measured / "vllm_runs" / "RTX4090" / "Llama-3.1-8B")
    (folder / "nccl_tests.txt").write_text(NCCL_TESTS)
    (folder / "copies.csv").write_text(OFFLOAD)
    (folder / "bench.json").write_bytes(BENCH.read_bytes())
    heads, *rows = OPERATORS.splitlines()
    both = [f"{heads},name,kind,mean_w", *(f"{row},gemm_bf16_4096,gemm_bf16,600" for row in rows)]
    (folder / "counted.csv").write_text("\n".join(both) + "\n")
    add_rows(folder / "ops.db", pa.table({name: pa.array([POINT[name]], SCHEMA.field(name).type) for name in COLUMNS}))
