"""`etude serve --program`: step costs of a model that is dry-run."""

import json
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.capture.dry.served import DryPasses, PassPoint, dry_passes
from etude.capture.dry.served.grid import grid_points
from etude.capture.dry.served.load_model import NoModelError, load_model
from etude.cost.ops import OpClass
from etude.cost.traces import ops_of
from etude.machine import open_system
from etude.make.generate.model import open_model
from etude.make.generate.passes import PassShape, pass_job
from etude.surface.cli import main
from etude.world.serve.deployment import deployed_program, replica_plan
from etude.world.serve.engine import Engine
from etude.world.serve.kept_program import read_tables, write_tables
from etude.world.serve.pass_time import times_ns
from etude.world.serve.program_tables import KINDS, ProgramTables, content_of, price_passes, tables_of
from etude.world.serve.stacks import ServingStack
from etude.world.serve.steps import PassContent, step_cost

PROGRAMS = Path(__file__).parents[1] / "dry" / "programs"
SPEC = f"{PROGRAMS / 'dry_causal.py'}:"
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 1000,
    "max_position_embeddings": 32768, "tie_word_embeddings": False,
}  # fmt: skip
"""The shape of `dry_causal.py`."""


pytestmark = pytest.mark.usefixtures("one_pytorch")


@pytest.fixture(scope="module")
def passes(one_pytorch: None) -> DryPasses:
    return dry_passes(f"{SPEC}build", open_system("dgx-h100").device)


@pytest.fixture(scope="module")
def tables(passes: DryPasses) -> ProgramTables:
    return price_passes(passes, open_system("dgx-h100"))


def test_weights_and_cache_have_their_bytes(passes: DryPasses) -> None:
    layer = 256 * 768 + 256 * 256 + 256 * 1024 + 512 * 256 + 2 * 256
    assert passes.weights_bytes == 2 * (2 * layer + 2 * 1000 * 256 + 256)
    assert passes.token_bytes == 2 * 2 * 2 * 256  # keys and values of two layers in two bytes
    assert passes.sequence_bytes == 0
    # At least the two halves of the gated layer and their product are there at once.
    assert 2 * 3 * 512 <= passes.working_bytes <= 2 * 20 * 512
    assert passes.vocabulary == 1000


def products(trace: Any, step: int) -> int:
    ops = ops_of(trace)
    return int(ops.flops[(ops.op_class == int(OpClass.GEMM)) & (trace.step == step)].sum())


def test_products_are_those_of_the_same_model_in_the_catalogue(passes: DryPasses, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    model = open_model(str(tmp_path / "config.json"))
    asked = [PassPoint(16, 1, 1024), PassPoint(1, 2048), PassPoint(1, 256, 4096)]
    shapes = [PassShape(decode=16, keys=1025), PassShape(chunk=2048), PassShape(chunk=256, past=4096)]
    generated = pass_job(model, replica_plan(model, 1), shapes).traces[0]
    for number, point in enumerate(asked):
        mine = products(passes.job.traces[0], int(passes.step[passes.points.index(point)]))
        tokens, logits = point.batch * point.tokens, point.batch
        by_hand = 2 * (tokens * 2 * (256 * 768 + 256 * 256 + 256 * 1024 + 512 * 256) + logits * 256 * 1000)
        assert mine == by_hand == products(generated, number)


def test_prompts_and_decodes_of_the_grid_are_met(tables: ProgramTables) -> None:
    values = tables.pass_ns(ServingStack())
    cost = tables.step_cost(ServingStack())
    for past, batch in product((1024, 4096, 16384), (1, 4, 16, 64, 256)):
        point = PassPoint(batch, 1, past)
        value = values[tables.points.index(point)]
        assert times_ns(cost, [content_of(point)])[0] == pytest.approx(value, rel=0.01)
    for chunk, past in ((1024, 0), (8192, 0), (2048, 4096), (8192, 16384)):
        point = PassPoint(1, chunk, past)
        value = values[tables.points.index(point)]
        assert times_ns(cost, [content_of(point)])[0] == pytest.approx(value, rel=0.02)
    median, most = tables.interpolation_error()
    assert median < 0.02 and most < 0.1


def test_a_longer_cache_takes_longer_by_its_bytes(tables: ProgramTables) -> None:
    """Growing copies the cache, which is read and written, and attention reads it: three times its bytes at least."""
    values = tables.pass_ns(ServingStack())
    few, many = (values[tables.points.index(PassPoint(256, 1, past))] for past in (4096, 16384))
    grown = 256 * (16384 - 4096) * 2048
    peak = open_system("dgx-h100").device.memory_bandwidth_bytes_per_s
    assert 3 * grown / peak * 1e9 < many - few < 1.5 * 3 * grown / peak * 1e9


def test_factors_and_launches_of_a_stack(tables: ProgramTables) -> None:
    plain, twice = ServingStack(), ServingStack(products=2.0, dense=2.0)
    rows = [KINDS.index("products"), KINDS.index("dense")]
    assert tables.pass_ns(twice) - tables.pass_ns(plain) == pytest.approx(tables.time_ns[rows].sum(axis=0))
    launched = tables.step_cost(ServingStack(one_launch_ns=1_000_000.0))
    one = PassContent(0, 0.0, 1, 2, 1, 2)
    assert times_ns(launched, [one])[0] == 1_000_000.0 * tables.facts.kernels  # longer than the device takes


def test_tables_of_times_that_are_a_sum_of_parts() -> None:
    """A pass of 100 + 3 for a token + 5 for logits + a hundredth for a pair of a query and a key."""
    points = tuple(grid_points(0, logits=True))
    pairs = [p.batch * (p.tokens * p.past + p.tokens * (p.tokens + 1) / 2) for p in points]
    value = np.array(
        [100 + 3 * p.batch * p.tokens + 5 * p.batch * p.logits + 0.01 * n for p, n in zip(points, pairs, strict=True)]
    )
    cost = step_cost(**tables_of(points, value))
    # Some pairs are in the layers: those of short sequences, 8.5 for a token of sixteen.
    assert times_ns(cost, [PassContent(0, 0.0, 16, 16 * 1025, 16, 1025)])[0] == pytest.approx(100 + 8 * 16 + 164, abs=2)
    assert times_ns(cost, [PassContent(0, 0.0, 300, 300 * 4000, 300, 4000)])[0] == pytest.approx(14_500, rel=0.01)
    chunk = PassContent(2048, 2048 * 1024 + 2048 * 2049 / 2, 0, 0, 1, 0)
    assert times_ns(cost, [chunk])[0] == pytest.approx(100 + 3 * 2048 + 5 + 0.01 * chunk.pairs, rel=0.01)
    mixed = PassContent(512, 512 * 513 / 2, 16, 16 * 2000, 17, 2000)
    together = 100 + 3 * 528 + 5 * 17 + 0.01 * (512 * 513 / 2 + 16 * 2000)
    assert times_ns(cost, [mixed])[0] == pytest.approx(together, rel=0.02)


def test_passes_that_are_kept_are_the_same(tables: ProgramTables, tmp_path: Path) -> None:
    path = tmp_path / "steps.npz"
    assert read_tables(path) is None
    write_tables(tables, path)
    found = read_tables(path)
    assert found is not None and found.points == tables.points and found.facts == tables.facts
    assert (found.time_ns == tables.time_ns).all() and (found.work_nj == tables.work_nj).all()
    path.write_bytes(path.read_bytes()[:100])
    assert read_tables(path) is None


def test_a_program_that_shards_itself_has_several_ranks() -> None:
    system = open_system("dgx-h100")
    found = price_passes(dry_passes(f"{SPEC}sharded", system.device, ranks=2), system)
    sent = found.time_ns[KINDS.index("network")]
    assert found.facts.ranks == 2 and (sent > 0).all()
    few, many = (sent[found.points.index(PassPoint(1, tokens))] for tokens in (1024, 16384))
    # Two sums of 256 numbers of 16 bits for each token, which a rank of two sends once: 450 GB/s at best.
    assert many > max(few, 2 * 16384 * 256 * 2 / 450e9 * 1e9)
    assert found.pass_ns(ServingStack(network=0.0, direct=1.0)) == pytest.approx(found.time_ns.sum(axis=0))


def test_the_grid_is_within_the_positions_of_a_model() -> None:
    for positions in (0, 1024, 512, 20):
        points = grid_points(positions, logits=True)
        assert len(points) == len(set(points))
        assert all(p.past + p.tokens <= (positions or 1 << 30) for p in points)
        assert any(p.past and p.tokens == 1 for p in points)
        assert {p.past for p in points} - {0} <= {p.tokens for p in points if p.batch == 1 and not p.past}
        value = np.array([float(1000 + p.batch * (p.tokens + p.past)) for p in points])
        step_cost(**tables_of(tuple(points), value))
        assert positions < 1024 or any(p.is_between for p in points)


def test_a_stream_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--system", "dgx-h100", "--rate", "4", "--count", "20", "--prompt", "100", "--output", "20", "--json"]
    assert main(["serve", "--program", f"{SPEC}short", *words]) == 0
    told = capsys.readouterr()
    mine = json.loads(told.out)
    assert mine["finished"] == 20 and mine["kv_peak"] > 0 and mine["energy_j"] > 0
    assert any("Cache, operator by operator" in line for line in mine["assumptions"])
    assert "after 0, 256 tokens" in told.err  # half of its 512 positions
    assert main(["serve", "gpt2", *words]) == 0
    assert set(mine) - {"assumptions"} == set(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([f"{SPEC}forgetful"], "the model has no cache: Forgetful returns no past_key_values"),
        ([f"{SPEC}build", "--tp", "2"], "the program does not shard itself over 2 ranks"),
        (["nothing.py:build"], "there is no file nothing.py"),
        (["llama3-8b"], "`llama3-8b` does not name a model"),
        ([f"{SPEC}build", "--ep", "2"], "--ep cannot be combined with --program"),
        ([f"{SPEC}build", "--window", "1s:2s", "--job-out", "w"], "--window cannot be combined with --program"),
        ([f"{SPEC}build", "--answer", "loss"], "`loss` is not a name with a number"),
    ],
)
def test_what_cannot_be_served_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--program", *words, "--system", "dgx-h100", "--rate", "4"]) == 2
    told = capsys.readouterr().err
    assert said in told and "Traceback" not in told


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from etude.capture.dry.served.serving import CachedModel

    def refused(spec: str) -> str:
        with pytest.raises(NoModelError) as problem:
            load_model(spec)
        return str(problem.value)

    assert "has no `nothing`" in refused(f"{SPEC}nothing")
    assert "returns int, not a module" in refused(f"{SPEC}number")
    config = tmp_path / "config.json"
    config.write_text("{}")
    assert "has no `model_type`" in refused(str(config))
    config.write_text("{")
    assert "is not JSON" in refused(str(config))
    with pytest.raises(NoModelError, match="its forward takes input_ids"):
        CachedModel(torch, load_model(f"{SPEC}without_cache"))


def test_a_config_needs_transformers(tmp_path: Path) -> None:
    if find_spec("transformers") is not None:
        pytest.skip("transformers is installed")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA))
    with pytest.raises(NoModelError, match="needs transformers, which is not installed"):
        load_model(str(config))


def test_transformers_refuses_what_is_not_causal(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = tmp_path / "config.json"
    for kind, said in (("vit", "is not a causal language model"), ("nothing", "has no model of the type")):
        config.write_text(json.dumps({"model_type": kind}))
        with pytest.raises(NoModelError, match=said):
            load_model(str(config))


def test_blocks_are_what_weights_and_passes_leave(passes: DryPasses, tables: ProgramTables) -> None:
    system = open_system("dgx-h100")
    placed = deployed_program("model.py:build", tables, system, Engine())
    beside = passes.weights_bytes + passes.working_bytes * Engine().max_num_batched_tokens
    left = system.device.memory_bytes * 0.9 - beside
    assert placed.blocks == int(left // (2048 * Engine().block_size))
    tiny = system.replace(device=replace(system.device, memory_bytes=2_000_000))
    with pytest.raises(UsageError, match="leave no memory"):
        deployed_program("model.py:build", tables, tiny, Engine())
