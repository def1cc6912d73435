"""Optimizers and 4-bit products: state and work of a tiny model, worked out matrix by matrix."""

import numpy as np
import pytest

from etude.base.errors import ClusterError
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import Generated, generate

TINY = Model.from_dict(
    {"name": "tiny", "layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 320, "seq": 16, "gated": True}
)
LAYER = [(64, 3 * 64), (64, 64), (64, 2 * 128), (128, 64)]
"""Matrices of a layer: queries, keys and values; out; gate and up; down."""
MATRICES = [*LAYER * 2, (320, 64), (64, 320)]  # with the embedding and the head
NORMS = 5 * 64
PARAMS = sum(rows * columns for rows, columns in MATRICES) + NORMS


def run(**plan: object) -> Generated:
    return generate(TINY, Plan.from_dict(plan))


def state(**plan: object) -> int:
    return run(**plan).memory[0].optimizer


def rows(found: Generated, module: str) -> dict[str, list[int]]:
    trace = found.job.traces[0]
    codes, words = trace.coded("module")
    here = np.array([w == module for w in words] + [False])[codes]
    names, known = trace.coded("name")
    told = [known[n] for n in names[here].tolist()]
    return {"name": told, "flops": trace.flops[here].tolist(), "bytes": trace.tensor_bytes[here].tolist()}


@pytest.mark.parametrize(
    ("optimizer", "moments"),
    [
        ("adamw", 8 * PARAMS),
        ("adamw_8bit", 2 * PARAMS + 2 * 4 * -(-PARAMS // 256)),
        ("adafactor", 4 * (sum(r + c for r, c in MATRICES) + NORMS)),
        ("muon", 4 * (sum(r * c for r, c in LAYER * 2) + 2 * (2 * 320 * 64 + NORMS))),
        ("momentum", 4 * PARAMS),
        ("sgd", 0),
    ],
)
def test_state_is_the_moments_and_the_copy_in_32_bits(optimizer: str, moments: int):
    assert state(optimizer=optimizer) == moments + 4 * PARAMS
    assert state(optimizer=optimizer, master=False) == moments


def test_an_update_reads_the_gradient_and_moves_the_state_twice():
    found = rows(run(optimizer="adamw_8bit", master=False), "optimizer.update")
    assert found["name"] == ["optimizer::adamw_8bit"]
    moments = 2 * PARAMS + 8 * -(-PARAMS // 256)
    assert found["bytes"] == [(4 + 2 + 2) * PARAMS + 2 * moments]
    assert rows(run(), "optimizer.update")["bytes"] == [(4 + 2) * PARAMS + 2 * (8 + 4) * PARAMS]


def test_muon_makes_each_matrix_of_a_layer_orthogonal_in_five_rounds_of_three_products():
    found = rows(run(optimizer="muon"), "optimizer.orthogonal")
    work = 0
    for r, c in LAYER * 2:
        m, n = sorted((r, c))
        work += 5 * (2 * m * m * n + 2 * m * m * m + 2 * m * m * n)
    assert sum(found["flops"]) == work
    assert set(found["name"]) == {"aten::bmm"}


def test_shards_keep_their_part_of_what_a_factored_state_is():
    whole = sum(r + c for r, c in MATRICES) + NORMS
    assert state(optimizer="adafactor", gpus=4, zero=1, master=False) == 4 * -(-whole // 4)
    assert state(optimizer="adafactor", gpus=4, master=False) == 4 * whole


def test_muon_is_refused_over_shards():
    with pytest.raises(ClusterError, match="whole matrices"):
        Plan(gpus=2, zero=1, optimizer="muon")  # type: ignore[arg-type]


def test_products_in_4_bits_move_half_of_what_8_bits_do():
    eight, four = (run(precision=p) for p in ("fp8", "fp4"))
    assert four.model_flops == eight.model_flops
    cast = 2 * sum(r * c for r, c in LAYER)
    assert eight.memory[0].weights - four.memory[0].weights == 2 * (cast - cast // 2)  # both layouts
    moved = [rows(found, "layers.0.ffn.down")["bytes"] for found in (eight, four)]
    assert [b / a for a, b in zip(*moved, strict=True)].count(0.5) >= 1
