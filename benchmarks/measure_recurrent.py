"""Measures what cuDNN keeps and works with in recurrent networks on this machine's GPU.

    python benchmarks/measure_recurrent.py -o benchmarks/h200_recurrent.csv
    python benchmarks/measure_recurrent.py --read benchmarks/h200_recurrent.csv     # no GPU

The first needs PyTorch and a GPU: a row for each kind, size and number of layers, with the bytes that a forward pass
keeps for a backward one (`reserve_bytes`), and those that forward and backward rise by at most (`forward_bytes`,
`backward_bytes`). The second prints how many numbers a pass works with for each element of a layer's state, beyond a
copy of the weights and 8 MiB for the products of a layer and direction: the median of rows in 32 bits whose state has
4 MB or more, with one direction only those without dropout. `capture/dry/cuda_recurrent.py` has these medians, and
tests hold it to all rows.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
from pathlib import Path

KINDS = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
SIZES = ((64, 32, 512, 1024), (300, 8, 1024, 1024), (50, 16, 256, 256), (37, 5, 96, 200), (128, 64, 128, 512))
"""Length, batch, width of what is read, width of the state."""


def rise(torch, call):
    """(What the call gives, bytes at its peak beyond those before it, bytes that it leaves.)"""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = call()
    torch.cuda.synchronize()
    return found, torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before


def measured(torch, kind: str, size: tuple[int, ...], layers: int, both: bool, dropout: float, half: bool) -> dict:
    length, batch, width, state = size
    dtype = torch.float16 if half else torch.float32
    name = "RNN" if kind.startswith("rnn") else kind.upper()
    named = {"nonlinearity": kind[4:]} if name == "RNN" else {}
    module = getattr(torch.nn, name)(width, state, layers, bidirectional=both, dropout=dropout, **named)
    module = module.cuda().to(dtype).train()
    given = torch.randn(length, batch, width, device="cuda", dtype=dtype, requires_grad=True)
    held = (2 if both else 1) * layers
    hidden = torch.zeros(held, batch, state, device="cuda", dtype=dtype)
    cell = hidden.clone() if kind == "lstm" else None
    weights = module._flat_weights
    buffer = (
        weights[0].new_empty(0).set_(weights[0].untyped_storage()) if hasattr(weights[0], "untyped_storage") else None
    )
    masks = torch._cudnn_init_dropout_state(dropout, True, 0, dtype=torch.uint8, device="cuda") if dropout else None
    call = torch.ops.aten._cudnn_rnn.default
    whole = [
        given,
        weights,
        4,
        buffer,
        hidden,
        cell,
        KINDS[kind],
        state,
        0,
        layers,
        False,
        dropout,
        True,
        both,
        [],
        masks,
    ]
    with torch.no_grad():
        call(*whole)  # handles and descriptors are made
        found, forward, _ = rise(torch, lambda: call(*whole))
    del found
    (results, _), _, _ = rise(torch, lambda: module(given))
    made, _, _ = rise(torch, lambda: call(*whole))
    loss = results.sum()
    _, backward, _ = rise(torch, lambda: loss.backward())
    return {
        "kind": kind, "length": length, "batch": batch, "width": width, "state": state, "layers": layers,
        "directions": 2 if both else 1, "dropout": dropout, "bytes_each": 2 if half else 4,
        "reserve_bytes": made[3].numel() * made[3].element_size(), "forward_bytes": forward, "backward_bytes": backward,
        "dropout_state_bytes": masks.numel() if masks is not None else 0,
    }  # fmt: skip


def worked_with(row: dict[str, str]) -> float:
    """Numbers for each element of a layer's state."""
    names = ("length", "batch", "width", "state", "layers", "directions", "bytes_each")
    length, batch, width, state, layers, directions, size = (int(row[name]) for name in names)
    read = [width] + [state * directions] * (layers - 1)
    weights = sum(GATES[row["kind"]] * state * (one + state + 2) * directions for one in read)
    ends = (2 if row["kind"] == "lstm" else 1) * directions * layers * batch * state
    results = (length * batch * state * directions + ends) * size
    rest = int(row["forward_bytes"]) - int(row["reserve_bytes"]) - results - weights * size
    return (rest - (8 << 20) * layers * directions) / (length * batch * state * size)


def read(path: Path) -> None:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for kind, directions in itertools.product(("rnn", "lstm", "gru"), (1, 2)):
        found = [
            worked_with(row)
            for row in rows
            if row["kind"].startswith(kind)
            and int(row["directions"]) == directions
            and row["bytes_each"] == "4"
            and (directions == 2 or float(row["dropout"]) == 0)
            and 4 * int(row["length"]) * int(row["batch"]) * int(row["state"]) >= 4_000_000
        ]
        print(f"{kind:5} {directions} directions: median {statistics.median(found):.1f} of {len(found)}, "
              f"{min(found):.1f} to {max(found):.1f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument("-o", "--out", type=Path)
    way.add_argument("--read", type=Path)
    given = parser.parse_args()
    if given.read:
        read(given.read)
        return
    import torch

    rows = []
    for kind, size, (layers, both, dropout), half in itertools.product(
        KINDS, SIZES, ((1, False, 0.0), (2, False, 0.0), (2, False, 0.2), (1, True, 0.0), (3, True, 0.1)), (False, True)
    ):
        rows.append(measured(torch, kind, size, layers, both, dropout, half))
        print(*rows[-1].values(), flush=True)
    with given.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
