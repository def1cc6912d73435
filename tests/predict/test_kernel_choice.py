"""Kernels and units of a prediction: memory and energy follow, and what was taken is told."""

import json
from pathlib import Path

import pytest

from etude.surface.cli import main

ONE_TOKEN = ["llama3.2-1b", "--serve", "--prefill", "1", "--decode", "1"]
# 16 layers of q, k, v, o and three of the MLP; the embedding, which the head is tied to; norms
LAYERS = 16 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192)
EMBEDDING, NORMS = 128256 * 2048, 33 * 2048
MACHINE = """
name: plain
device: {name: d, peak: {bf16: 100T, fp32: 10T}, memory: 80GB, memory_bandwidth: 1TB/s, power: 1000000, idle_power: 1,
         energy: {byte_pj: 1000}}
levels: [{name: host, kind: switch, size: 1, bandwidth: 1GB/s}]
"""


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def machine(tmp_path: Path) -> str:
    (tmp_path / "plain.yaml").write_text(MACHINE)
    return str(tmp_path / "plain.yaml")


def test_narrow_weights_take_less_room(machine: str, capsys: pytest.CaptureFixture[str]):
    plain = told(capsys, "predict", *ONE_TOKEN, "--system", machine)
    assert plain["weights_bytes"] == 2 * (LAYERS + EMBEDDING + NORMS)
    narrow = told(capsys, "predict", *ONE_TOKEN, "--system", machine, "--kernel", "product:w4a16:g128")
    # a head of its own in 4 bits, since the embedding stays in 16
    assert narrow["weights_bytes"] == 2 * (EMBEDDING + NORMS) + (LAYERS + EMBEDDING) * 4.125 / 8
    assert narrow["kernels"]["product:w4a16:g128"]["nodes"] == 2 * (16 * 4 + 1)  # qkv, o, gate and up, down
    chosen = told(capsys, "predict", *ONE_TOKEN, "--system", machine, "--kernel", "auto")
    assert chosen["weights_bytes"] == plain["weights_bytes"]


def test_energy_counts_the_bytes_of_the_kernel(machine: str, capsys: pytest.CaptureFixture[str]):
    def products(*kernel: str) -> float:
        found = told(capsys, "energy", *ONE_TOKEN, "--system", machine, *kernel)
        return found["by_class"]["gemm"]

    # 1000 pJ a byte, two passes over all weights of products, whose activations are a thousandth of that
    weights = 2 * (LAYERS + EMBEDDING) * 1e-9
    assert products() == pytest.approx(2 * weights, rel=2e-3)
    assert products("--kernel", "product:w4a16:g128") == pytest.approx(4.125 / 8 * weights, rel=8e-3)
    apart = products("--kernel", "product:w4a16:g128:apart")
    assert apart == pytest.approx((4.125 / 8 + 2 * 3) * weights, rel=2e-3)


@pytest.mark.parametrize(("words", "problem"), [
    (["--clock", "0.8", "--kernel", "product:w4a16:g128"], "cannot be combined with --kernel"),
    (["--kernel", "product:w4"], "unknown kernel `product:w4`"),
    (["--units", "npu"], "device `d` has no unit `npu`"),
])  # fmt: skip
def test_what_cannot_be_is_refused(words: list[str], problem: str, machine: str, capsys: pytest.CaptureFixture[str]):
    assert main(["energy", *ONE_TOKEN, "--system", machine, *words]) == 2
    assert problem in capsys.readouterr().err
