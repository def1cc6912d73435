"""What models need of the operator database, and predictions that take their times from it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from etude.base.errors import UsageError
from etude.cost.opdb import OpDatabase, Shapes, add_rows, read_ops, shapes_of, worker
from etude.cost.opdb.database import SCHEMA, keys_in
from etude.cost.opdb.keys import compute_rows
from etude.cost.opdb.schema import COLUMNS, DIMS
from etude.cost.stacks import open_stack
from etude.machine import open_system
from etude.make.generate import Plan, generate
from etude.make.generate.model import Model, open_model
from etude.make.generate.serving import Serving, serve
from etude.model.schema import Kind
from etude.run.simulate import simulate
from etude.steps import predict, predict_serving
from etude.steps.operators import ModelWorkload, needs_of, open_ops
from etude.steps.operators.needs import use_in
from etude.surface.cli import main

H200 = open_system("dgx-h200")
SHAPE = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 256, "seq": 32, "gated": True, "norm": "rms"}
SMALL = Model.from_dict({"name": "small", **SHAPE})
WORK = ModelWorkload(tokens=(16, 32), batch=(1, 4), keys=(8,))


def database_of(points: Shapes, time_us: Any, device: str = "h200") -> OpDatabase:
    """A database with these points, each with a time of its own."""
    known = {"device": [device] * len(points), "backend": ["torch"] * len(points), "op": points.op.tolist(),
             "dtype": points.dtype.tolist(), "time_us": list(time_us), "repeat": [0] * len(points),
             "source": ["test"] * len(points)}  # fmt: skip
    columns = known | {name: points.column(name).tolist() for name in DIMS}
    return OpDatabase(pa.table({name: pa.array(columns[name], SCHEMA.field(name).type) for name in COLUMNS}))


# -- needs -------------------------------------------------------------------------------------------------------------


def test_models_of_equal_dimensions_share_their_keys():
    alone = needs_of([SMALL], [1], WORK, H200).summary()
    twin = SMALL.replace(name="twin", layers=5)
    both = needs_of([SMALL, twin], [1], WORK, H200).summary()
    assert both["keys"] == 2 * alone["keys"] and both["distinct"] == alone["distinct"] == both["missing"]
    assert both["saved_fraction"] == 0.5 and both["cost_s"] == alone["cost_s"]
    assert both["cost_s"] <= both["cost_alone_s"]


def test_a_set_costs_its_union():
    other = SMALL.replace(name="other", ffn=256)
    sets = [set(keys_in(needs_of([m], [1, 2], WORK, H200).points)) for m in (SMALL, other)]
    both = needs_of([SMALL, other], [1, 2], WORK, H200)
    assert set(keys_in(both.points)) == sets[0] | sets[1]
    assert both.summary()["distinct"] == len(sets[0] | sets[1]) < len(sets[0]) + len(sets[1])
    assert sets[1] - sets[0] and sets[0] & sets[1]


def test_what_is_measured_is_not_missing():
    needs = needs_of([SMALL], [1], WORK, H200)
    half = np.arange(len(needs.points)) % 2 == 0
    database = database_of(needs.points.take(half), np.full(half.sum(), 5.0))
    rest = needs_of([SMALL], [1], WORK, H200, database=database)
    assert rest.summary()["points_missing"] == len(needs.points) - half.sum()
    assert rest.summary()["missing"] == len(set(keys_in(needs.points)) - set(keys_in(needs.points.take(half))))
    left = {json.dumps(p, sort_keys=True) for p in rest.plan("h200", "torch")["points"]}
    every = needs.plan("h200", "torch")["points"]
    assert len(left) == len(every) - half.sum() and left <= {json.dumps(p, sort_keys=True) for p in every}
    full = database_of(needs.points, np.full(len(needs.points), 5.0))
    assert needs_of([SMALL], [1], WORK, H200, database=full).summary()["cost_s"] == 0


def test_each_key_is_measured_once_before_any_is_measured_twice():
    needs = needs_of([SMALL], [1], WORK, H200)
    points, seen = needs.plan("h200", "torch")["points"], set[str]()
    for point in points[: len(set(keys_in(needs.points)))]:
        free = ("tokens", "keys", "batch", "batch_keys", "elements")
        key = json.dumps({k: v for k, v in point.items() if k not in free}, sort_keys=True)
        assert key not in seen
        seen.add(key)


def test_the_points_are_those_of_the_jobs():
    job = serve(SMALL, Plan.from_dict({"gpus": 1}), Serving(prefill=16)).job
    served = {tuple(row) for row in use_in(job).shapes.dims.tolist()}
    assert served <= {tuple(row) for row in needs_of([SMALL], [1], WORK, H200).points.dims.tolist()}


def test_a_split_that_cannot_be_is_left_out_unless_all_are():
    assert len(needs_of([SMALL], [1, 3], WORK, H200).uses) == 1
    with pytest.raises(UsageError):
        needs_of([SMALL], [3], WORK, H200)


def test_the_worker_counts_the_ops_of_a_step_as_a_generated_trace_does():
    model = SMALL.replace(layers=8)
    stack = open_stack("eager")
    plan = Plan.from_dict({**stack.recipe[0].plan, "recompute": "none"})
    trace = generate(model, plan).job.traces[0]
    host = int(((trace.kind == int(Kind.COMP)) & (trace.cpu == 1)).sum())
    assert host - 16 == worker.ops_of_a_step(8)  # two more a layer: rotary positions, which the worker's model has not


# -- predictions -------------------------------------------------------------------------------------------------------


def test_a_step_of_measured_ops_takes_the_sum_of_their_times():
    plan = Plan.from_dict({"gpus": 1, "seq": 32, "recompute": "none"})
    job = generate(SMALL, plan).job
    use = use_in(job)
    time_us = np.arange(1, len(use.shapes) + 1).astype(float)
    database = database_of(use.shapes, time_us)
    found = simulate(job, H200.for_ranks(1), compute="ops", ops=database)
    rows = compute_rows(job.traces[0])
    assert (shapes_of(job.traces[0], rows).op != "").all()
    assert found.makespan_ns == int((use.count * time_us).sum()) * 1000
    record = predict(SMALL, plan, H200, stack=open_stack("default"), ops=database).summary()
    assert record["low"]["step_time_ns"] is None
    assert record["basis"]["step_time_ns"]["text"] == "no evidence for a step by a database of operators"
    assert any(f"of {len(rows):,} compute nodes {len(rows):,} measured" in note for note in found.notes)
    # of a stack with other kernels: what is measured is as it is
    stack = open_stack("megatron-lm")
    assert predict(SMALL, plan, H200, stack=stack, ops=database).simulated.makespan_ns == found.makespan_ns


def test_the_measured_host_replaces_that_of_the_plan():
    plan = Plan.from_dict({"gpus": 1, "seq": 32, "recompute": "none", "host": "1us"})
    use = use_in(generate(SMALL, plan).job)
    rows = Shapes.of([("host", "bf16", {})])
    points = Shapes(*(np.concatenate([getattr(use.shapes, n), getattr(rows, n)]) for n in ("op", "dtype", "dims")))
    database = database_of(points, [*[1.0] * len(use.shapes), 500.0])
    found = predict(SMALL, plan, H200, ops=database)
    launches = int((found.generated.job.traces[0].cpu == 1).sum())
    assert found.by_database and "500.0 us" in found.assumed[0]
    assert launches * 500_000 <= found.simulated.makespan_ns <= launches * 500_000 + 2000


def test_serving_from_measured_ops():
    served = serve(SMALL, Plan.from_dict({"gpus": 1}), Serving(prefill=16, decode=2, batch=4))
    use = use_in(served.job)
    found = predict_serving(served, H200, ops=database_of(use.shapes, np.full(len(use.shapes), 3.0)))
    assert found.simulated.makespan_ns == 3000 * int(use.count.sum())


def test_attention_of_a_mixed_pass_is_in_the_database():
    # 17 tokens a pass: 16 of the first prompt and 1 of the second; then a token out of the first, which sees 17, and
    # the 15 tokens left of the second prompt, which see 1 before them.
    serving = Serving(prefill=16, decode=3, batch=2, chunked=True, token_budget=17)
    served = serve(SMALL, Plan.from_dict({"gpus": 1}), serving)
    use = use_in(served.job)
    free = [DIMS.index(name) for name in ("tokens", "keys", "batch", "batch_keys")]
    found = {tuple(row) for row in use.shapes.dims[use.shapes.op == "attention_serve"][:, free].tolist()}
    assert found == {(15, 1, 0, 0), (0, 0, 1, 17), (0, 0, 2, 17), (0, 0, 2, 18), (0, 0, 1, 19)}
    database = database_of(use.shapes, np.full(len(use.shapes), 3.0))
    rows = np.flatnonzero(served.job.traces[0].step == 1)
    attention = [n for n in rows.tolist() if served.job.traces[0].text("name", n) == "flash_attn::varlen_fwd"]
    start, end = predict_serving(served, H200, ops=database).simulated.timing.block(0)
    assert attention and {int(end[n] - start[n]) for n in attention} == {3000}


# -- the command line --------------------------------------------------------------------------------------------------


def model_file(folder: Path) -> str:
    path = folder / "small.json"
    path.write_text(json.dumps(SHAPE))
    return str(path)


def test_missing_measured_elsewhere_added_and_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model, db, plan = model_file(tmp_path), str(tmp_path / "h200.ops"), tmp_path / "plan.json"
    sizes = ["--tokens", "16", "--batch", "2", "--keys", "8", "--device", "h200", "--db", db]
    assert main(["ops", "missing", model, *sizes, "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert {"keys", "distinct", "missing", "saved_fraction", "cost_s"} <= set(numbers)
    assert numbers["missing"] == numbers["distinct"] > 5 and not Path(db).exists()
    assert main(["ops", "measure", model, *sizes, "--plan-only", str(plan)]) == 0
    assert (tmp_path / "plan_worker.py").read_text() == Path(worker.__file__).read_text()
    assert main(["ops", "measure", model, *sizes, "--plan-only", str(plan)]) == 2  # it is there
    capsys.readouterr()

    given = json.loads(plan.read_text())
    rows = [row for point in given["points"] for row in worker.written(given, point, [4.0, 6.0])]
    points = tmp_path / "points.csv"
    points.write_text("\n".join([",".join(COLUMNS), *(",".join(str(r[n]) for n in COLUMNS) for r in rows)]) + "\n")
    assert main(["ops", "add", str(points), "--db", db, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"added": len(rows), "rows": len(rows)}
    assert main(["ops", "missing", model, *sizes, "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert (after["missing"], after["points_missing"], after["cost_s"]) == (0, 0, 0)

    assert main(["ops", "show", db, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert sum(line["points"] for line in shown) == len(given["points"]) and {line["most us"] for line in shown} == {
        5.0
    }
    serving = ["--serve", "--prefill", "16", "--system", "dgx-h200", "--json"]
    assert main(["predict", model, *serving, "--ops", db]) == 0
    found = json.loads(capsys.readouterr().out)
    job = serve(open_model(model), Plan.from_dict({"gpus": 1}), Serving(prefill=16)).job
    assert found["makespan_ns"] == 5000 * len(compute_rows(job.traces[0]))
    out = tmp_path / "job"
    assert main(["generate", model, "--serve", "--prefill", "16", "-o", str(out)]) == 0
    capsys.readouterr()
    assert main(["simulate", str(out), "--system", "dgx-h200", "--ops", db, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["makespan_ns"] == found["makespan_ns"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "gpt2", "--system", "dgx-h200", "--ops", "none.ops"], "no such database"),
        (
            ["predict", "gpt2", "--system", "dgx-h200", "--ops-backend", "torch"],
            "--ops-backend is read only with --ops",
        ),
        (["predict", "gpt2", "--system", "dgx-h100", "--ops", "DB"], "measured on h200, but the system has"),
        (["predict", "--rows", "x.csv", "--ops", "DB"], "--ops is not read by `etude predict rows`"),
        (["ops", "missing", "gpt2", "--tp", "two"], "--tp[0]: `two` is not a count"),
        (["ops", "measure", "gpt2"], "--device is missing"),
        (["ops", "show", "DB", "--op", "warp"], "unknown op `warp`"),
        (["ops", "import", "none.csv"], "no such file or folder"),
    ],
)
def test_what_is_asked_for_wrongly(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    db = tmp_path / "h200.ops"
    add_rows(db, database_of(Shapes.of([("linear", "bf16", {"n": 8, "k": 8, "tokens": 1})]), [1.0]).table)
    assert main([str(db) if a == "DB" else a for a in arguments]) == 2
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said


def test_measured_on_this_machine_only_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("torch", reason="needs PyTorch: make test TORCH=1")
    model, db = model_file(tmp_path), str(tmp_path / "mine.ops")
    sizes = [
        "--tokens",
        "4",
        "--batch",
        "2",
        "--keys",
        "4",
        "--device",
        "my-cpu",
        "--db",
        db,
        "--repeats",
        "1",
        "--json",
    ]
    assert main(["ops", "measure", model, *sizes, "--budget", "1ns"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"] == 0 and not Path(db).exists()
    assert main(["ops", "measure", model, *sizes]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["measured"] == len(read_ops(db)) > 5 and first["left"] == 0
    assert main(["ops", "measure", model, *sizes]) == 0
    assert json.loads(capsys.readouterr().out) == {"measured": 0, "left_out": 0, "left": 0}


def test_points_of_a_device_of_the_catalogue_are_not_measured_on_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    torch = pytest.importorskip("torch", reason="needs PyTorch: make test TORCH=1")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["ops", "measure", model_file(tmp_path), "--device", "tpu-v5p", "--db", str(tmp_path / "x.ops")]) == 2
    assert "this machine has no GPU" in capsys.readouterr().err


def test_a_database_or_a_folder_is_opened(tmp_path: Path):
    database = database_of(Shapes.of([("linear", "bf16", {"n": 8, "k": 8, "tokens": 1})]), [1.0])
    add_rows(tmp_path / "a.ops", database.table)
    assert len(open_ops(tmp_path / "a.ops")) == 1
    folder = tmp_path / "bf16"
    (folder / "tp1").mkdir(parents=True)
    (folder / "meta.yaml").write_text(
        "hardware: H200\nmodel: meta-llama/Llama-3.1-8B\nvariant: bf16\nvllm_version: '1'\n"
    )
    (folder / "tp1" / "dense.csv").write_text("layer,tokens,time_us\ndown_proj,4,7\n")
    found = open_ops(folder).shapes()
    assert (found.column("n").tolist(), found.column("k").tolist()) == ([4096], [14336])


def test_a_profile_folder_with_a_device_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "bf16"
    (folder / "tp1").mkdir(parents=True)
    (folder / "meta.yaml").write_text("hardware: MyChip\nmodel: Qwen/Qwen3-0.6B\nvariant: bf16\nvllm_version: '1'\n")
    (folder / "tp1" / "dense.csv").write_text("layer,tokens,time_us\ndown_proj,4,7\nqkv_proj,4,9\n")
    system = tmp_path / "mine.yaml"
    level = "{name: pcie, kind: switch, size: 2, bandwidth: 50GB/s, latency: 2us}"
    system.write_text(f"name: mine\ndevice: {{name: my-chip}}\nlevels: [{level}]\n")
    arguments = ["predict", "qwen3-0.6b", "--serve", "--prefill", "4", "--system", str(system), "--ops", str(folder)]
    assert main([*arguments, "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["makespan_ns"] == 28 * (7000 + 9000) and found["mfu"] is None  # of 28 layers; nothing says the rest
    assert "56 measured" in said.err
