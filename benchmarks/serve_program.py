"""Passes of a program against those of the same model in the catalogue: `etude serve --program` beside `etude serve`.

    python benchmarks/serve_program.py llama3-8b                    # as a Llama of transformers, which it needs
    python benchmarks/serve_program.py llama3-8b --program model.py:build --system dgx-h100
    python benchmarks/serve_program.py --measured passes.csv --system dgx-h200      # of measure_passes.py, on a GPU

Both are priced by the same roofline without the factors of a stack. The program is eager PyTorch: element-wise
operators, copies that grow a cache, and casts are kernels of their own; the catalogue's pass has the kernels of an
engine. The table has the ratio of the whole pass, the same for products and for attention, and the part of the
program's time that is neither.

With `--measured` it has the sum of a pass's kernels as it was measured beside the prediction, the time from call to
result, and how many kernels there are.
"""

import argparse
import csv
import json
import tempfile
from pathlib import Path

import numpy as np

from etude.cost.aten_matrix import VARLEN
from etude.cost.traces import ops_of
from etude.kernels.arrays import F64
from etude.machine import System, open_system
from etude.make.generate.model import Model, open_model
from etude.make.generate.passes import PassShape, pass_job
from etude.run.simulate import simulate
from etude.steps import grown
from etude.world.serve.catalogue import PARTS, kinds_of_work
from etude.world.serve.deployment import replica_plan
from etude.world.serve.program_tables import KINDS, ServedProgram, program_tables


def shape_of(point) -> PassShape:
    if point.tokens == 1:
        return PassShape(decode=point.batch, keys=point.past + 1)
    return PassShape(chunk=point.tokens, past=point.past)


def catalogue_ns(model: Model, system: System, shapes: list[PassShape]) -> F64:
    """(products, attention, rest) of generated passes, node by node."""
    job = pass_job(model, replica_plan(model, 1), shapes)
    part = simulate(job, grown(system, len(job)), compute="roofline").part(0)
    time_ns = np.where(part.timed, part.end_ns - part.start_ns, 0).astype(np.float64)
    kind = kinds_of_work(part.trace, ops_of(part.trace), system.device.busy(), False)
    found = np.zeros((len(PARTS) + 1, len(shapes)))
    np.add.at(found, (kind, np.maximum(part.trace.step, 0)), np.where(part.trace.step >= 0, time_ns, 0.0))
    return by_class(found, [*PARTS, VARLEN])


def by_class(time_ns: F64, kinds: list[str]) -> F64:
    attends = np.array([kind == VARLEN or kind.endswith("attention") for kind in kinds])
    products = np.isin(kinds, ("products", "dense", "narrow", "experts", "wide_experts", "narrow_experts"))
    rest = ~attends & ~products
    return np.array([time_ns[mask].sum(axis=0) for mask in (products, attends, rest)])


def llama_config(model: Model, folder: Path) -> str:
    """The config of a Llama with the shape of a model."""
    config = {
        "model_type": "llama",
        "hidden_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv,
        "head_dim": model.head,
        "intermediate_size": model.ffn,
        "vocab_size": model.vocab,
        "max_position_embeddings": 131072,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder / "config.json")


def against_measured(path: Path, system: System) -> None:
    """Prints measured and predicted passes, and the errors of each model."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    print("model  sequences  tokens  context  kernels us  predicted us  error  pass us  kernels  predicted")
    errors: dict[str, list[float]] = {}
    for name, config in dict.fromkeys((row["model"], row["config"]) for row in rows):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(config)
            tables = program_tables(ServedProgram(str(Path(folder) / "config.json")), system)
        at = {(p.batch, p.tokens, p.past): i for i, p in enumerate(tables.points) if p.logits == 1}
        for row in rows:
            place = at.get((int(row["batch"]), int(row["tokens"]), int(row["past"])))
            if row["model"] != name or place is None:
                continue
            predicted, took = tables.time_ns[:, place].sum() / 1e3, float(row["kernels_s"]) * 1e6
            errors.setdefault(name, []).append(predicted / took - 1)
            print(
                f"{name:7}{row['batch']:>9}{row['tokens']:>8}{row['past']:>9}{took:12,.0f}{predicted:14,.0f}"
                f"{predicted / took - 1:+7.0%}{float(row['pass_s']) * 1e6:9,.0f}{row['kernels']:>9}"
                f"{tables.facts.kernels:>11}"
            )
    for name, found in errors.items():
        near = f"median {np.median(np.abs(found)):.1%}, {min(found):+.0%} to {max(found):+.0%}"
        print(f"{name}: {len(found)} passes, {near}")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("model", nargs="?", default="llama3-8b")
    asked.add_argument("--measured", type=Path, help="passes that were measured on a GPU")
    asked.add_argument("--program", default="", help="default: the model as a Llama of transformers")
    asked.add_argument("--system", default="dgx-h100")
    given = asked.parse_args()
    if given.measured is not None:
        against_measured(given.measured, open_system(given.system))
        return
    system, model = open_system(given.system), open_model(given.model)
    with tempfile.TemporaryDirectory() as folder:
        spec = given.program or llama_config(model, Path(folder))
        tables = program_tables(ServedProgram(spec), system)
    wanted = [
        i
        for i, p in enumerate(tables.points)
        if p.logits == 1 and ((p.tokens == 1 and p.past) or p.batch == 1) and not p.is_between
    ]
    points = [tables.points[i] for i in wanted]
    mine = by_class(tables.time_ns[:, wanted], list(KINDS))
    theirs = catalogue_ns(model, system, [shape_of(p) for p in points])
    kernels = f"{tables.facts.kernels} kernels of a decode"
    print(f"{given.program or 'transformers'} ({kernels}) against {given.model} on {given.system}")
    print(f"weights {tables.facts.weights_bytes:,.0f} B, a token of the cache {tables.facts.token_bytes:,.0f} B")
    print("sequences  tokens  context  program us  catalogue us  ratio  products  attention  neither")
    rows = zip(points, mine.T, theirs.T, strict=True)
    for p, a, b in sorted(rows, key=lambda row: (row[0].tokens > 1, row[0].batch, row[0].past, row[0].tokens)):
        attends = f"{a[1] / b[1]:9.2f}" if b[1] else "        -"
        print(
            f"{p.batch:9}{p.tokens:8}{p.past:9}{a.sum() / 1e3:12,.0f}{b.sum() / 1e3:14,.0f}{a.sum() / b.sum():7.2f}"
            f"{a[0] / b[0]:10.2f}  {attends}{a[2] / a.sum():9.0%}"
        )


if __name__ == "__main__":
    main()
