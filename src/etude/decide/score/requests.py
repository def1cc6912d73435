"""Requests that an engine or its benchmark client measured: a result of `vllm bench serve` or `sglang.bench_serving`,
or spans of the engine. The file does not say what it ran on: the model, the system and the engine's rules are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from etude.base.errors import UsageError
from etude.base.shapes import names_in
from etude.capture.ingest.requests import holds_requests
from etude.decide.score.kind import Item, PredictedRow, ScoreKind, ScoreRequest
from etude.decide.score.serving import check_serving
from etude.make.generate.model import open_model
from etude.world.serve import Engine, request_stream, serve
from etude.world.serve.measured import bench_result, beside_bench
from etude.world.serve.pools import Between, between_options, deployed_pools, pools_of

STACK: Final = "vllm"
READS: Final = names_in("""
    model system stack ops tp ep replicas router precision kv_dtype engine
""")


def predict(item: Item, asked: ScoreRequest) -> PredictedRow:
    path: Path = item.value
    engine, between = Engine.from_dict(asked.engine), Between()
    network, tp, ep = open_model(asked.model), asked.tp or 1, asked.ep or 1
    engine = replace(engine, barrier=True) if ep > tp else engine
    pools = pools_of(between, replicas=asked.replicas or 1, tp=tp, ep=ep)
    groups, placed = deployed_pools(
        network, pools, engine, system=asked.system, precision=asked.precision or "bf16", stack=asked.stack or STACK,
        ops=asked.ops, kv_dtype=asked.kv_dtype,
    )  # fmt: skip
    token_bytes = float(placed.token_bytes * tp)
    options = between_options(between, token_bytes) | {
        "router": asked.router or "least",
        "caching": placed.caching,
        "token_bytes": token_bytes,
        "lora": placed.lora,
    }
    served = serve(request_stream(str(path)), engine, groups, **options)
    found = beside_bench(bench_result(path), served)
    return PredictedRow(
        measured=found["measured"], predicted=found["predicted"], assumed=[*found["assumed"], *_unsaid(asked)]
    )


def _unsaid(asked: ScoreRequest) -> list[str]:
    usual = {
        "tp": "tensor parallel 1",
        "ep": "each expert is split over the ranks",
        "replicas": "one replica",
        "router": "requests go to the replica with the fewest",
        "precision": "precision bf16",
        "kv_dtype": "keys and values in the precision of the computation",
        "stack": f"stack {STACK}",
    }
    said = [text for name, text in usual.items() if not getattr(asked, name)]
    return [*said, f"other rules of the engine as in `etude serve` ({len(asked.engine)} were given)"]


def _rows(path: Path, asked: ScoreRequest) -> list[Item]:
    if not asked.model or not asked.system:
        hint = "etude score result.json --model llama3-8b --system dgx-h100, and the engine's flags"
        raise UsageError("measured requests do not say what they ran on", where=str(path), hint=hint)
    check_serving(asked)
    open_model(asked.model)
    Engine.from_dict(asked.engine).rules(asked.router or "least")
    bench_result(path)  # a damaged file is an error of the file, not of a row
    return [Item(1, path)]


KIND: Final = ScoreKind(
    name="requests",
    doc="result of `vllm bench serve` or `sglang.bench_serving`, or spans of an engine; with --model and --system",
    holds=lambda source: holds_requests(source.path),
    rows=_rows,
    predict=predict,
    reads=frozenset(READS),
)
