"""The operator database: curves worked by hand, files that are wrong, points of other tools."""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from etude.base.errors import EtudeError, FormatError, MismatchError, UsageError
from etude.cost.opdb import OpDatabase, Shapes, TimeOrigin, add_rows, read_ops, read_points, worker
from etude.cost.opdb.curves import Curves
from etude.cost.opdb.database import SCHEMA
from etude.cost.opdb.keys import shape_of
from etude.cost.opdb.profiles import ModelShape, is_vidur, read_profile, read_vidur
from etude.cost.opdb.schema import COLUMNS, DIMS, OPS, works_of
from etude.cost.ops import OpClass
from etude.machine import Device, open_device

BARE = Device(name="nothing is known of it")
H100 = open_device("h100")


def point(
    op: str = "linear", time_us: float = 10.0, *, repeat: int = 0, source: str = "test", **dims: int
) -> dict[str, Any]:
    known = {"device": "h100", "backend": "torch", "op": op, "dtype": "bf16", **dict.fromkeys(DIMS, 0)}
    return {**known, **dims, "time_us": time_us, "repeat": repeat, "source": source}


def table(*points: dict[str, Any]) -> pa.Table:
    return pa.table({name: pa.array([p[name] for p in points], SCHEMA.field(name).type) for name in COLUMNS})


def line(tokens: int, time_us: float = 10.0, **more: Any) -> dict[str, Any]:
    return point(time_us=time_us, n=64, k=32, tokens=tokens, **more)


def asked(op: str = "linear", **dims: int) -> Shapes:
    return Shapes.of([(op, "bf16", dims)])


def curves(*points: dict[str, Any], device: Device = BARE) -> Curves:
    shapes, time_ns = OpDatabase(table(*points)).points()
    return Curves(shapes, time_ns, device)


def answer(found: Curves, shapes: Shapes) -> tuple[float, TimeOrigin]:
    time_ns, origin = found.time_ns(shapes)
    return float(time_ns[0]), TimeOrigin(int(origin[0]))


# -- curves ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [BARE, H100])
def test_a_measured_point_is_the_mean_of_its_repeats(device: Device):
    found = curves(line(8, 10.0), line(8, 13.0, repeat=1), line(8, 16.0, source="another day"), device=device)
    time_ns, origin = answer(found, asked(n=64, k=32, tokens=8))
    assert round(time_ns, 6) == 13_000 and origin == TimeOrigin.MEASURED


def test_between_points_the_logarithm_is_linear_in_that_of_the_size():
    found = curves(line(3, 10.0), line(63, 1000.0))  # 1 + tokens: 4 and 64, and 16 is half-way
    time_ns, origin = answer(found, asked(n=64, k=32, tokens=15))
    assert round(time_ns, 3) == 100_000 and origin == TimeOrigin.BETWEEN


def test_two_dimensions_are_taken_one_after_another():
    def pair(batch: int, length: int, time_us: float) -> dict[str, Any]:
        return point("attention", time_us, heads=4, kv_heads=4, head_size=16, batch=batch, tokens=length, keys=length)

    # of batch 1: 3 -> 1 us and 63 -> 100 us; of batch 3: 3 -> 4 us and 63 -> 400 us
    found = curves(pair(1, 3, 1.0), pair(1, 63, 100.0), pair(3, 3, 4.0), pair(3, 63, 400.0))
    heads = {"heads": 4, "kv_heads": 4, "head_size": 16}
    time_ns, _ = answer(found, asked("attention", batch=3, tokens=3, keys=3, **heads))
    assert round(time_ns, 3) == 4000
    time_ns, origin = answer(found, asked("attention", batch=1, tokens=15, keys=15, **heads))
    assert origin == TimeOrigin.BETWEEN and round(time_ns, 3) == 10_000


def test_outside_its_points_a_key_follows_the_roofline_from_the_edge():
    found = curves(line(1024, 7.0), line(4096, 20.0), device=H100)
    plain = curves(device=H100)
    sizes = (4096, 4097, 8192, 65536)
    times = [answer(found, asked(n=64, k=32, tokens=size)) for size in sizes]
    formula = [answer(plain, asked(n=64, k=32, tokens=size)) for size in sizes]
    assert [o for _, o in formula] == [TimeOrigin.ROOFLINE] * 4
    assert [o for _, o in times] == [TimeOrigin.MEASURED, *[TimeOrigin.OUTSIDE] * 3]
    assert times[0][0] == pytest.approx(20_000)
    ratio = [t / f for (t, _), (f, _) in zip(times, formula, strict=True)]
    assert ratio == pytest.approx([ratio[0]] * 4)


def test_without_a_roofline_nothing_is_said_outside():
    time_ns, origin = answer(curves(line(3), line(63)), asked(n=64, k=32, tokens=64))
    assert math.isnan(time_ns) and origin == TimeOrigin.NONE


def test_a_key_without_points_learns_from_its_neighbours_and_less_from_far_ones():
    plain = answer(curves(device=H100), asked(n=128, k=128, tokens=64))[0]
    double = 2 * plain / 1000  # the neighbour takes twice its roofline
    near = curves(point(n=128, k=127, tokens=64, time_us=double), device=H100)
    far = curves(point(n=100_000, k=4, tokens=64, time_us=1e-3), device=H100)
    at_near, at_far = answer(near, asked(n=128, k=128, tokens=64)), answer(far, asked(n=128, k=128, tokens=64))
    assert at_near[1] == at_far[1] == TimeOrigin.NEAR
    assert 1.8 * plain < at_near[0] < 2.1 * plain
    assert at_far[0] == pytest.approx(plain, rel=0.5)


def test_both_types_of_16_bits_share_a_curve():
    found = curves(line(8, 10.0))
    time_ns, _ = found.time_ns(Shapes.of([("linear", "fp16", {"n": 64, "k": 32, "tokens": 8})]))
    assert time_ns[0] == pytest.approx(10_000)


def test_a_gradient_of_an_input_takes_the_curve_of_a_product_where_it_has_none():
    found = curves(line(8, 10.0))
    assert answer(found, asked("linear_input", n=64, k=32, tokens=8)) == (pytest.approx(10_000), TimeOrigin.MEASURED)
    assert answer(found, asked("linear_weight", n=64, k=32, tokens=8))[1] == TimeOrigin.NONE


def test_many_rows_are_answered_as_one_by_one():
    rng = np.random.Generator(np.random.PCG64(1))
    given = [
        line(int(t), float(us)) for t, us in zip(rng.permutation(200)[:20] + 1, rng.uniform(1, 99, 20), strict=True)
    ]
    found = curves(*given, device=H100)
    rows = [("linear", "bf16", {"n": int(rng.choice([64, 65])), "k": 32, "tokens": int(t)}) for t in range(1, 300, 7)]
    together, origin = found.time_ns(Shapes.of(rows))
    apart = [found.time_ns(Shapes.of([row])) for row in rows]
    assert together.tolist() == [t[0] for t, _ in apart] and origin.tolist() == [o[0] for _, o in apart]


def test_the_work_of_a_pass_of_serving():
    # a prompt of 2 behind 3 keys: 2 x 3 + 3 pairs; 4 tokens out with 10 keys each: 40 pairs. 5 and 40 keys held
    shapes = asked("attention_serve", heads=2, kv_heads=1, head_size=8, tokens=2, keys=3, batch=4, batch_keys=10)
    ops = works_of(shapes)
    assert ops.flops.tolist() == [4 * 2 * 8 * 49]
    assert ops.size_bytes.tolist() == [2 * 8 * (2 * 2 * 6 + 2 * 1 * 45)]
    assert ops.op_class.tolist() == [OpClass.ATTENTION]


def test_nodes_by_their_shapes_and_phase():
    types = "['Tensor(c10::BFloat16)', 'Tensor(c10::BFloat16)']"
    product = "[[256, 768], [768, 3072]]"
    assert shape_of("aten::mm", product, "", types, "forward") == (
        "linear",
        "bf16",
        {"tokens": 256, "n": 3072, "k": 768},
    )
    assert shape_of("aten::mm", product, "", types, "backward-input")[0] == "linear_input"
    weight = shape_of("aten::mm", "[[768, 256], [256, 3072]]", "", types, "backward-weight")
    assert weight == ("linear_weight", "bf16", {"tokens": 256, "n": 3072, "k": 768})
    assert shape_of("aten::mm", "[[256, 768]]", "", types, "forward") == ("", "", {})
    assert shape_of("aten::something", product, "", types, "forward") == ("", "", {})
    gated = shape_of("aten::silu", "[[100], [100]]", "", types, "forward")
    assert gated == ("silu", "bf16", {"elements": 100, "inputs": 2})


# -- files -------------------------------------------------------------------------------------------------------------


def test_added_once_however_often(tmp_path: Path):
    path = tmp_path / "h100.ops"
    assert add_rows(path, table(line(8), line(16, 20.0))) == (2, 2)
    assert add_rows(path, table(line(8), line(32, 40.0))) == (1, 3)
    again = read_ops(path)
    assert len(again) == 3 and again.devices == ["h100"] and again.table.schema.names == list(COLUMNS)
    assert [p.name for p in tmp_path.iterdir()] == ["h100.ops"]


def test_another_time_for_the_same_measurement_is_refused_and_nothing_is_written(tmp_path: Path):
    path = tmp_path / "h100.ops"
    add_rows(path, table(line(8, 10.0)))
    before = path.read_bytes()
    with pytest.raises(FormatError, match="twice, with 10.0 us and with 11.0 us"):
        add_rows(path, table(line(8, 11.0)))
    assert path.read_bytes() == before
    assert add_rows(path, table(line(8, 11.0, source="another day")))[1] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time_us": "nan"}, "a time of nan us"),
        ({"time_us": "-3"}, "a time of -3.0 us"),
        ({"time_us": "0"}, "a time of 0.0 us"),
        ({"time_us": "fast"}, "line 2: `time_us` is `fast`"),
        ({"tokens": "-1"}, "`tokens` is -1, which is negative"),
        ({"tokens": "1.5"}, "line 2: `tokens` is `1.5`"),
        ({"op": "warp"}, "unknown op `warp`"),
        ({"dtype": "bf17"}, "unknown data type `bf17`"),
        ({"heads": "3"}, "op `linear` has no `heads`"),
    ],
)
def test_points_that_cannot_be(tmp_path: Path, change: dict[str, str], message: str):
    path = tmp_path / "points.csv"
    written(path, [{**line(8), **change}], COLUMNS)
    with pytest.raises(FormatError, match=message) as raised:
        read_points(path)
    assert str(path) in str(raised.value)


def written(path: Path, rows: list[dict[str, Any]], names: Any) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(names), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def test_other_columns_and_units_are_said(tmp_path: Path):
    path = tmp_path / "points.csv"
    written(path, [{**line(8), "time_ms": 1}], [name if name != "time_us" else "time_ms" for name in COLUMNS])
    with pytest.raises(FormatError, match="microseconds in a column `time_us`; this one has `time_ms`"):
        read_points(path)
    path.write_text("op,shape\nlinear,8\n")
    with pytest.raises(FormatError, match="no column `device`"):
        read_points(path)


def test_files_that_are_none(tmp_path: Path):
    with pytest.raises(UsageError, match="no such database"):
        read_ops(tmp_path / "none.ops")
    (tmp_path / "text.ops").write_text("hello")
    with pytest.raises(FormatError, match="is not an operator database"):
        read_ops(tmp_path / "text.ops")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.ops")
    with pytest.raises(FormatError, match="is Parquet, but not an operator database"):
        read_ops(tmp_path / "other.ops")


def test_another_device_is_refused_and_so_is_a_backend_that_is_not_there():
    database = OpDatabase(table(line(8), {**line(8), "backend": "vllm"}))
    with pytest.raises(MismatchError, match="measured on h100, but the system has `NVIDIA A100"):
        database.on(open_device("a100"))
    with pytest.raises(UsageError, match="torch, vllm, and none is named"):
        database.on(H100)
    with pytest.raises(UsageError, match="no backend `tgi`"):
        database.on(H100, backend="tgi")
    assert answer(database.on(H100, backend="vllm"), asked(n=64, k=32, tokens=8))[1] == TimeOrigin.MEASURED


# -- other tools -------------------------------------------------------------------------------------------------------

LLAMA = ModelShape(hidden=8, heads=4, kv_heads=2, head_size=2, ffn=16, gated=True, vocab=100)


def profile(folder: Path) -> Path:
    (folder / "tp1").mkdir(parents=True)
    (folder / "meta.yaml").write_text("hardware: H100\nmodel: my/llama\nvariant: bf16\nvllm_version: 0.19.0\n")
    layers = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "layernorm", "final_layernorm", "act_fn", "rotary_emb")
    rows = "".join(f"{layer},4,{10 + i}.5\n" for i, layer in enumerate(layers))
    (folder / "tp1" / "dense.csv").write_text("layer,tokens,time_us\n" + rows)
    (folder / "tp1" / "per_sequence.csv").write_text("layer,sequences,time_us\nlm_head,2,30\nsampler,2,40\n")
    (folder / "tp1" / "attention.csv").write_text(
        "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,3,50,8\n16,32,0,0,9\n"
    )
    return folder


def test_a_profile_folder_is_a_database(tmp_path: Path):
    database = read_profile(profile(tmp_path / "bf16"), lambda name: {"my/llama": LLAMA}[name])
    assert database.devices == ["h100"] and database.backends == ["vllm-0.19.0"]
    found = database.on(H100)
    assert answer(found, asked(n=16, k=8, tokens=4))[0] == pytest.approx(10_500)  # qkv: (4 + 2 x 2) x 2
    assert answer(found, asked(n=8, k=8, tokens=4))[0] == pytest.approx(11_500)
    assert answer(found, asked(n=32, k=8, tokens=4))[0] == pytest.approx(12_500)
    assert answer(found, asked(n=8, k=16, tokens=4))[0] == pytest.approx(13_500)
    assert answer(found, asked(n=100, k=8, tokens=2))[0] == pytest.approx(30_000)
    assert answer(found, asked("rms_norm", n=8, tokens=4))[0] == pytest.approx(14_500)
    assert answer(found, asked("silu", elements=64, inputs=2))[0] == pytest.approx(16_500)
    heads = {"heads": 4, "kv_heads": 2, "head_size": 2}
    assert answer(found, asked("attention_serve", batch=3, batch_keys=50, **heads))[0] == pytest.approx(8000)
    assert answer(found, asked("attention_serve", tokens=16, keys=32, **heads))[0] == pytest.approx(9000)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("meta.yaml", "hardware: H100\nmodel: my/llama\nvariant: bf16\n", "no text `vllm_version`"),
        ("meta.yaml", "hardware: H100\nmodel: my/llama\nvariant: int3\nvllm_version: x\n", "variant `int3`"),
        ("tp1/dense.csv", "layer,tokens\no_proj,4\n", "no column `time_us`"),
        ("tp1/dense.csv", "layer,tokens,time_us\no_proj,4,nan\n", "line 2: a time of nan us"),
        ("tp1/dense.csv", "layer,tokens,time_us\no_proj,4,-2\n", "line 2: a time of -2.0 us"),
        ("tp1/dense.csv", "layer,tokens,time_us\no_proj,four,2\n", "cannot be read"),
        ("tp1/attention.csv", "a,b\n1,2\n", "no column `prefill_chunk`"),
    ],
)  # fmt: skip
def test_a_profile_folder_that_is_wrong(tmp_path: Path, file: str, text: str, message: str):
    folder = profile(tmp_path / "bf16")
    (folder / file).write_text(text)
    with pytest.raises(EtudeError, match=message):
        read_profile(folder, lambda name: LLAMA)


def test_vidurs_operators(tmp_path: Path):
    path = tmp_path / "ops.csv"
    head = "device,model,op,tokens,tp,heads,kv_heads,hidden,ffn,vocab,gated,median_us\n"
    rows = ["attn_pre_proj,7,2,8,4,64,96,1000,True,11", "mlp_up_proj,7,2,8,4,64,96,1000,True,12",
            "mlp_act,7,2,8,4,64,96,1000,True,13", "input_layernorm,7,2,8,4,64,96,1000,True,14",
            "input_layernorm,7,1,8,4,64,96,1000,True,16", "unheard_of,7,2,8,4,64,96,1000,True,9"]  # fmt: skip
    path.write_text(head + "".join(f"h100,m,{row}\n" for row in rows))
    assert is_vidur(path)
    found = OpDatabase(read_vidur(path)).on(H100)
    assert answer(found, asked(n=64, k=64, tokens=7))[0] == pytest.approx(11_000)  # (8 + 2 x 4) / 2 heads of 8
    assert answer(found, asked(n=96, k=64, tokens=7))[0] == pytest.approx(12_000)
    assert answer(found, asked("act", n=48, inputs=2, tokens=7))[0] == pytest.approx(13_000)
    assert answer(found, asked("rms_norm", n=64, tokens=7))[0] == pytest.approx(15_000)  # whatever the split
    path.write_text(head + "h100,m,attn_pre_proj,7,2,0,4,64,96,1000,True,11\n")
    with pytest.raises(FormatError, match="`heads` is 0"):
        read_vidur(path)


# -- the worker --------------------------------------------------------------------------------------------------------


def test_the_worker_has_the_columns_of_the_database_and_imports_nothing_else():
    import ast
    import sys

    assert worker.COLUMNS == COLUMNS
    tree = ast.parse(Path(worker.__file__).read_text())
    names = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "torch"}


def test_the_worker_measures_every_op_it_knows_and_goes_on_where_it_ended(tmp_path: Path):
    pytest.importorskip("torch", reason="needs PyTorch: make test TORCH=1")
    import json

    sizes = {"n": 16, "k": 8, "heads": 2, "kv_heads": 1, "head_size": 8, "experts": 2, "inputs": 2, "tokens": 4,
             "keys": 4, "batch": 2, "batch_keys": 4, "elements": 32, "element_bytes": 14}  # fmt: skip
    skipped = ("host", "experts_serve", "act", "grouped", "grouped_input", "grouped_weight")
    kinds = {name: kind for name, kind in OPS.items() if name not in skipped}
    points = [
        {"op": op, "dtype": "fp32", **{d: sizes[d] for d in kind.fixed + kind.free}} for op, kind in kinds.items()
    ]
    plan, out = tmp_path / "plan.json", tmp_path / "points.csv"
    about = {"device": "mine", "backend": "torch", "repeats": 2}
    plan.write_text(json.dumps({**about, "points": points[:3]}))
    assert worker.main([str(plan), "-o", str(out)]) == 0
    first = out.read_text()
    plan.write_text(json.dumps({**about, "points": [*points, {"op": "unheard_of", "dtype": "fp32"}]}))
    assert worker.main([str(plan), "-o", str(out)]) == 0
    assert out.read_text().startswith(first)
    found = OpDatabase(read_points(out))
    assert set(found.shapes().op.tolist()) == set(kinds) and len(found) == 2 * len(points)
    assert add_rows(tmp_path / "mine.ops", found.table) == (2 * len(points), 2 * len(points))
