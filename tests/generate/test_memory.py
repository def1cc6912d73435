"""Memory of a rank: what PyTorch's allocator makes of sizes, and gradients that appear while activations go."""

from typing import Any

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.train.allocator import segments_bytes
from etude.make.generate.train.job import generate, plan_memory
from etude.make.generate.train.memory import Memory

MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "held"),
    [
        ([1], 2),
        ([MIB], 2),
        ([512] * 4096, 2),
        ([513] * 4096, 4),  # 1,024 bytes each
        ([MIB + 1], 20),
        ([10 * MIB - 512], 20),
        ([5 * MIB] * 5, 40),
        ([10 * MIB], 10),
        ([10 * MIB + 1], 12),
        ([1, 3 * MIB, 11 * MIB], 2 + 20 + 12),
        ([], 0),
    ],
)
def test_blocks_and_segments(sizes: list[int], held: int):
    assert segments_bytes(np.array(sizes, np.int64)) == held * MIB


# One layer, 1,024 tokens, 64 wide: weights 2 x 1024 x 64 (tables), 4 x 64 x 64 (attention), 2 x 64 x 256, 3 norms.
ONE = Model(name="one", layers=1, hidden=64, heads=1, ffn=256, vocab=1024, seq=1024, positions="none")
WEIGHTS = 2 * 1024 * 64 + 4 * 64 * 64 + 2 * 64 * 256 + 3 * 64


def memory(**plan: Any) -> Memory:
    given = {"seq": 1024, "grad_dtype": "bf16", "state_dtype": "bf16", "master": False, "loss_dtype": "bf16"}
    return plan_memory(ONE, Plan.from_dict(given | plan))[0]


def test_the_loss_is_the_peak_of_one_micro_batch_and_no_gradient_is_there():
    """Log-probabilities, their gradient and that of the logits, 2 bytes each of 1,024 x 1,024; what the layer, the norm
    and the logits' product kept: 16 + 16 (feed-forward of 4 h) and 4 bytes of 1,024 x 64, 8 of a token, 4 of a row."""
    kept = (32 + 4) * 1024 * 64 + 8 * 1024 + 4 * 1024
    found = memory()
    assert found.peak_bytes == 6 * WEIGHTS + kept + 3 * 2 * 1024 * 1024
    assert found.present.tolist()[0] == 0 and found.gradients == 2 * WEIGHTS


def test_a_second_micro_batch_finds_gradients_there():
    """And at the same moment; or if they keep their memory between steps."""
    assert memory(global_batch=2).peak_bytes == memory().peak_bytes + 2 * WEIGHTS
    assert memory(keep_grads=True).peak_bytes == memory().peak_bytes + 2 * WEIGHTS


def test_a_loss_in_32_bits_takes_twice_as_much():
    assert memory(loss_dtype="fp32").peak_bytes - memory().peak_bytes == 3 * 2 * 1024 * 1024


def test_plain_operations_keep_more():
    """A copy in 32 bits and one in 16 where a norm kept 2 bytes: 4 more, of two norms and the last."""
    assert memory(unfused="norm").peak_bytes - memory().peak_bytes == 3 * 4 * 1024 * 64
    assert memory(unfused="activation").peak_bytes == memory().peak_bytes  # no gate
    with pytest.raises(UsageError, match="unfused: column 1: unknown value `gelu`"):
        memory(unfused="gelu")


def test_clamped_halves_of_a_gate_are_joined_again():
    """Forward, in elements of 1,024 x 256: each half read and written (4), both joined (4), the gate (3); kept: what
    was clamped and what was joined, 4 where the gate alone keeps 2."""
    gated = ONE.replace(gated=True, gate_clamp=True)

    def found(**plan: Any) -> tuple[int, int]:
        made = generate(gated, Plan.from_dict({"seq": 1024, **plan}))
        trace = made.job.trace(0)
        names, words = trace.coded("name")
        rows = np.flatnonzero(names == words.index("aten::silu"))
        return int(trace.tensor_bytes[rows].sum()), made.memory[0].activation_bytes

    (fused, little), (apart, more) = found(), found(unfused="activation")
    assert (fused, apart) == (3 * 2 * 1024 * 256, 11 * 2 * 1024 * 256)
    assert more - little == 2 * 2 * 1024 * 256


def test_biases_of_experts_are_added_one_expert_after_another():
    """Of 1,024 tokens with two experts each, 64 wide. Forward in bytes: the bias times a weight is written in 32 bits
    (4), read with the product's output, and the sum written (4 + 2 + 4), parts joined (4 + 4), cast (4 + 2). Backward:
    cast (2 + 4), cast for the product (4 + 2), its parts joined (2 + 2), and for the biases and for the weights of
    tokens a product (4 + 4) that is summed (4)."""
    biased = ONE.replace(gated=True, experts=4, top_k=2, expert_ffn=128, expert_bias=True)

    def moved(**plan: Any) -> list[int]:
        trace = generate(biased, Plan.from_dict({"seq": 1024, **plan})).job.trace(0)
        modules, words = trace.coded("module")
        at = [words.index(word) for word in words if word.endswith("experts.bias")]
        return np.unique(trace.tensor_bytes[np.isin(modules, at)]).tolist()

    assert moved() == []
    assert moved(unfused="bias") == [28 * 1024 * 2 * 64, 40 * 1024 * 2 * 64]


def test_inputs_of_activations_in_8_bits_take_half():
    """Of two micro-batches, the first of which is kept while the second runs on another stage: 1 byte less of each of
    the gate's and the value's 1,024 x 256 elements."""
    gated = ONE.replace(gated=True)

    def kept(**plan: Any) -> int:
        return plan_memory(gated, Plan.from_dict({"seq": 1024, "precision": "fp8", **plan}))[0].activation_bytes

    assert kept() - kept(keep_cast=True) == 2 * 1024 * 256


def test_what_is_held_is_no_less_than_the_peak():
    found = memory()
    assert found.reserved_bytes >= found.peak_bytes
