"""Where a tensor is that a dry run follows."""

import json
import sys
from pathlib import Path

import pytest

from etude.surface.cli import main

torch = pytest.importorskip("torch")


def test_a_tensor_of_meta_is_neither_on_the_host_nor_on_the_device() -> None:
    from etude.capture.dry.storages import TensorStorages

    found = TensorStorages()
    for place in ("cpu", "meta"):
        found.number(torch.empty(4, device=place), 0, 0)
    assert found.places == [0, 2]


def test_gathered_weights_are_given_back_after_their_layer(tmp_path: Path) -> None:
    """A rank has 1 MiB of a layer's weights and as much of its gradient, and the whole of them in 16 bits, 2 MiB, for a
    while only: three layers more need 6 MiB more and a little that is on its way, and not 12."""
    program, peaks = Path(__file__).parent / "programs" / "dry_gathered.py", []
    for layers in (2, 5):
        out = tmp_path / str(layers)
        command = [sys.executable, str(program), str(layers)]
        assert main(["collect", "--dry", "--world", "4", "--device", "h100", "-o", str(out), "--", *command]) == 0
        peaks.append(json.loads((out / "manifest.json").read_text())["memory"]["peak_allocated_bytes"])
    assert peaks[1] - peaks[0] <= 8 * 2**20
