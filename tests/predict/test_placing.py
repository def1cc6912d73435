"""Tokens by the room of a device, worked by hand: bytes read near and far."""

import json

import pytest

from etude.base.errors import UsageError
from etude.make.generate.model import open_model
from etude.steps.placing import parts_of
from etude.surface.cli import main

ROOM = 0.9
"""Part of a memory's bandwidth that a device without constants of its own reaches."""


def test_parts_of_a_dense_model_and_of_one_with_experts():
    sizes = {part.name: part.size_bytes for part in parts_of(open_model("llama3-8b"), 1000)}
    assert sizes == {"weights": 2 * 8_030_261_248, "experts": 0, "kv": 1000 * 32 * 2 * 8 * 128 * 2}
    dense, experts, _ = parts_of(open_model("qwen3-30b-a3b"), 1000, 4.0)
    assert experts.size_bytes == 48 * 128 * 3 * 2048 * 768 / 2 and experts.use == 8 / 128
    assert dense.size_bytes + experts.size_bytes == 30_532_122_624 / 2
    with pytest.raises(UsageError, match="0 bits per weight"):
        parts_of(open_model("llama3-8b"), 1000, 0.0)


def test_the_command(capsys):
    given = ["ops", "place", "llama3-8b", "--context", "1000", "--room", "0.5GB,8.5GB,32GB", "--json"]
    assert main(given) == 0
    none, half, whole = json.loads(capsys.readouterr().out)["rooms"]
    read = 2 * 8_030_261_248 + 131_072_000
    near, far = ROOM * 1.792e12, ROOM * 89.6e9 + 55.4e9
    assert none["tokens_per_s"] == pytest.approx(far / read)
    assert half["tokens_per_s"] == pytest.approx(1 / (8e9 / near + (read - 8e9) / far))
    assert whole["tokens_per_s"] == pytest.approx(near / read) and whole["far_read_bytes"] == 0
    assert main([*given[:-3], "--room", "0.4GB"]) == 2  # no room for the buffers
    assert main([*given, "--device", "desktop"]) == 2  # no link to a host
