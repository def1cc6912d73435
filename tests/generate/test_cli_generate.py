"""`etude generate`, `predict` and `plan` as scripts use them."""

import csv
import json
from pathlib import Path

import pytest

import etude
from etude.decide.search.plans.space import usual_batch
from etude.machine import open_system
from etude.make.generate.model.open import stored_as
from etude.model.schema import Collective
from etude.run.simulate.run import simulate
from etude.surface.cli import main

TINY = "{layers: 4, hidden: 64, heads: 4, ffn: 128, vocab: 256, seq: 32, gated: true, tied: true}\n"
PLAN = ["--gpus", "8", "--tp", "2", "--pp", "2", "--global-batch", "8", "--zero", "1"]
NUMBERS = ["ranks", "distinct_traces", "nodes", "flops", "params", "comm_bytes_by_type", "memory_peak_bytes"]


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return str(path)


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> dict:
    assert main([*args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_generate_says_its_numbers_and_writes_a_folded_job(tiny: str, tmp_path: Path, capsys):
    out = tmp_path / "job"
    found = printed(capsys, "generate", tiny, *PLAN, "-o", str(out))
    assert list(found) == NUMBERS
    assert (found["ranks"], found["distinct_traces"]) == (8, 2)
    job = etude.open(out)
    assert (len(job), len(job.traces), job.nodes) == (8, 2, found["nodes"])
    assert main(["check", str(out)]) == 0


def test_files_are_the_same_every_time_and_hold_what_the_folded_job_does(tiny: str, tmp_path: Path):
    for name in ("a", "b"):
        assert main(["generate", tiny, *PLAN, "--to", "et", "--dialect", "astra", "-o", str(tmp_path / name)]) == 0
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert len(files) == 10  # the groups and the card too
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)
    groups = json.loads((tmp_path / "a" / "tiny.json").read_text())
    assert all(int(name) > 0 and len(members) > 1 for name, members in groups.items())


def test_attributes_have_the_types_that_readers_expect(tiny: str, tmp_path: Path):
    """As the C++ feeder reads them: another type reads as zero."""
    import chakra_pb

    assert main(["generate", tiny, *PLAN, "--to", "et", "--dialect", "astra", "-o", str(tmp_path / "job")]) == 0
    expected = {
        "is_cpu_op": "bool_val", "num_ops": "int64_val", "tensor_size": "uint64_val", "comm_type": "int64_val",
        "comm_size": "int64_val", "comm_src": "int32_val", "comm_dst": "int32_val", "comm_tag": "int32_val",
        "pg_name": "string_val",
    }  # fmt: skip
    _, nodes = chakra_pb.read_messages((tmp_path / "job" / "tiny.0.et").read_bytes())
    seen = {a.name: a.WhichOneof("value") for node in nodes for a in node.attr if a.name in expected}
    assert seen == {name: kind for name, kind in expected.items() if name in seen}
    assert {"num_ops", "tensor_size", "comm_type", "comm_size", "comm_tag", "pg_name"} <= set(seen)
    flops = [a.int64_val for node in nodes for a in node.attr if a.name == "num_ops"]
    assert min(flops) > 0


def test_nothing_is_written_if_numbers_are_all_that_is_asked_for(tiny: str, tmp_path: Path, capsys):
    before = sorted(tmp_path.iterdir())
    assert printed(capsys, "generate", tiny, *PLAN, "--no-write")["ranks"] == 8
    assert sorted(tmp_path.iterdir()) == before


def test_a_plan_file_under_flags(tiny: str, tmp_path: Path, capsys):
    plan = tmp_path / "plan.yaml"
    plan.write_text("{gpus: 4, tp: 2, recompute: full}\n")
    one = printed(capsys, "generate", tiny, "--plan", str(plan), "--no-write")
    two = printed(capsys, "generate", tiny, "--plan", str(plan), "--recompute", "none", "--no-write")
    assert one["ranks"] == two["ranks"] == 4
    assert one["flops"] > two["flops"]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["--gpus", "6", "--tp", "4"], "not a multiple of tp 4"),
        (["--gpus", "8", "--tp", "8"], "4 attention heads cannot be split over 8"),
        (["--gpus", "8", "--pp", "8"], "4 layers cannot fill 8"),
        (["--gpus", "2", "--global-batch", "3"], "not a multiple of dp 2"),
        (["--gpus", "4", "--pp", "4", "--schedule", "spiral"], "unknown pipeline schedule"),
        (["--gpus", "4", "--ep", "3"], "not a multiple of ep 3"),
        (["--gpus", "4", "--ep", "4"], "for models with experts, and `tiny` has none"),
        (["--zero", "4"], "no ZeRO stage 4"),
        (["--sp"], "needs tensor parallelism"),
        (["--order", "tp-dp"], "does not name each"),
        (["--gpus", "2", "--cp", "2", "--seq", "30"], "no 4 equal pieces"),
        (["--memory", "1MB"], "does not fit"),
        (["--gpus", "4", "--pp", "4", "--stages", "1,1,1"], "4 stages"),
        (["--gpus", "3", "--pp", "3", "--stages", "2,0,2"], "stage 1 has no layers"),
        (["--moe-skew", "3"], "between 1 and 2"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(tiny: str, tmp_path: Path, capsys, args: list[str], problem: str):
    assert main(["generate", tiny, *args, "-o", str(tmp_path / "job")]) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "job").exists()


def test_predict_adds_time_tokens_and_utilisation(tiny: str, tmp_path: Path, capsys):
    found = printed(capsys, "predict", tiny, *PLAN, "--system", "dgx-h100")
    assert {*NUMBERS, "step_time_ns", "tokens_per_s_per_gpu", "mfu", "stack", "low", "high", "basis"} <= set(found)
    assert found["stack"] == "default"
    assert sorted(found["basis"]) == ["memory_peak_bytes", "mfu", "step_time_ns", "tokens_per_s_per_gpu"]
    assert found["low"]["mfu"] is None  # far smaller than anything that was measured
    known = printed(capsys, "predict", "gpt2", "--gpus", "2", "--system", "dgx-h100")
    assert known["low"]["mfu"] < known["low_50"]["mfu"] < known["mfu"] < known["high"]["mfu"]
    assert found["tokens_per_s_per_gpu"] == pytest.approx(8 * 32 / 8 / found["step_time_ns"] * 1e9)
    assert 0 < found["mfu"] < 1
    printed(capsys, "generate", tiny, *PLAN, "-o", str(tmp_path / "job"))
    simulated = printed(capsys, "simulate", str(tmp_path / "job"), "--system", "dgx-h100")
    plain = printed(capsys, "predict", tiny, *PLAN, "--system", "dgx-h100", "--stack", "none")
    assert simulated["makespan_ns"] == plain["step_time_ns"]
    assert plain["step_time_ns"] < found["step_time_ns"]


def test_plan_ranks_what_fits(tiny: str, capsys):
    assert (
        main(["plan", tiny, "--gpus", "4", "--global-batch", "16", "--system", "dgx-h100", "--tries", "3", "--json"])
        == 0
    )
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 3
    assert [r["step_time_ns"] for r in rows] == sorted(r["step_time_ns"] for r in rows)
    assert all(r["tp"] * r["pp"] * r["cp"] * r["dp"] == 4 for r in rows)


def test_plans_are_ranked_over_one_batch(tiny: str, capsys):
    assert main(["plan", tiny, "--gpus", "4", "--system", "dgx-h100", "--tries", "4", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 4 and {r["global_batch"] for r in rows} == {4}
    assert len({r["dp"] for r in rows}) > 1
    assert usual_batch(16384, 8192) == 2048  # 16 Mi tokens


@pytest.mark.parametrize(
    ("axes", "ranks", "sends"),
    [("--tp 2 --ep 4", 4, 0), ("--pp 2 --micro-batch 2", 2, 2 * 4), ("--pp 4 --tp 2 --ep 4", 16, 2 * 3 * 8 * 4)],
)
def test_ranks_and_micro_batches_that_are_left_out(tmp_path: Path, capsys, axes: str, ranks: int, sends: int):
    """The fewest ranks that the axes fill; two micro-batches for each pipeline rank. Every one of them crosses every
    border both ways."""
    path = tmp_path / "mixture.yaml"
    path.write_text(TINY.replace("}", ", experts: 4, top_k: 1}"))
    found = printed(capsys, "generate", str(path), *axes.split(), "--no-write")
    assert found["ranks"] == ranks
    rows = 32 * 2 if "--micro-batch" in axes else 32 // 2  # sequence parallel with tensor parallelism
    assert found["comm_bytes_by_type"].get("send", 0) == sends * rows * 64 * 2


def test_members_of_a_collective_say_one_size_in_files_by_rank(tmp_path: Path, capsys):
    """What the fullest of them moves; in the folded job each says its own."""
    path = tmp_path / "moe.yaml"
    path.write_text(
        "{layers: 2, hidden: 64, heads: 4, ffn: 64, vocab: 256, seq: 32, gated: true, experts: 8, top_k: 2}\n"
    )
    args = ("generate", str(path), "--ep", "4", "--gpus", "8", "--moe-skew", "1.5")
    printed(capsys, *args, "--to", "et", "--dialect", "astra", "-o", str(tmp_path / "et"))
    printed(capsys, *args, "-o", str(tmp_path / "folded"))
    even, own = etude.open(tmp_path / "et"), etude.open(tmp_path / "folded")
    exchange = even.trace(0).collective == Collective.ALL_TO_ALL
    assert exchange.sum() == 2 * 4
    for rank in range(8):
        assert set(even.trace(rank).in_bytes[exchange].tolist()) == {32 * 2 * 64 * 2 * 3 // 2}
        sent = own.trace(rank).in_bytes[exchange]
        assert sent.min() == round(min(1.0, 0.5 + rank % 4 / 3) * 32 * 2 * 64 * 2)
        assert even.trace(rank).flops.clip(1).min() == 1
    assert simulate(even, open_system("dgx-h100")).makespan_ns == simulate(own, open_system("dgx-h100")).makespan_ns


def test_memory_over_time(tiny: str, tmp_path: Path, capsys):
    out = tmp_path / "memory.csv"
    found = printed(
        capsys, "generate", tiny, "--pp", "4", "--global-batch", "8", "--no-write", "--memory-out", str(out)
    )
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 4 * 2 * 8
    assert max(int(r["total"]) for r in rows) == found["memory_peak_bytes"]
    parts = ("weights", "gradients", "optimizer", "activations", "temporary")
    assert all(int(r["total"]) == sum(int(r[p]) for p in parts) for r in rows)
    first = [r for r in rows if r["pipeline_rank"] == "0"]
    flying = [int(r["activations"]) for r in first]
    assert max(flying) == 4 * flying[0]  # 1F1B: as many as stages behind
    args = ("--serve", "--prefill", "16", "--decode", "3", "--batch", "2", "--no-write", "--force", "--memory-out")
    found = printed(capsys, "generate", tiny, *args, str(out))
    rows = list(csv.DictReader(out.open()))
    assert [r["phase"] for r in rows] == ["prefill", "decode", "decode", "decode"]
    assert max(int(r["keys_and_values"]) for r in rows) == found["kv_peak_bytes"]
    assert max(int(r["total"]) for r in rows) <= found["memory_peak_bytes"]
    assert main(["generate", tiny, "--no-write", "--memory-out", str(tmp_path / "memory.txt")]) == 2
    assert "memory.txt: a table cannot be written as `.txt`" in capsys.readouterr().err


def sections_file(folder: Path, *models: tuple[str, str, int]) -> str:
    """Sections (name, model, ranks) beside one another, with the plan of `PLAN`."""
    plan = {"seq": 32, "micro_batch": 1, "tp": 2}
    sections = {name: {"model": model, "gpus": gpus, "plan": plan} for name, model, gpus in models}
    path = folder / "sections.yaml"
    path.write_text(json.dumps({"batch": 8, "sections": sections}))
    return str(path)


@pytest.mark.parametrize("stack", [[], ["--stack", "none"], ["--stack", "nemo"], ["--stack", "torchtitan"]])
def test_one_section_takes_as_long_as_the_plain_step(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, stack: list[str]
):
    file = sections_file(tmp_path, ("all", "gpt2", 4))
    found = printed(capsys, "predict", "--sections", file, "--system", "dgx-h100", *stack)
    plan = ["--gpus", "4", "--tp", "2", "--seq", "32", "--micro-batch", "1", "--global-batch", "8"]
    plain = printed(capsys, "predict", "gpt2", *plan, "--system", "dgx-h100", *stack)
    assert found["step_time_ns"] == plain["step_time_ns"]
    assert found["stack"] == plain["stack"]
    assert [text.partition(": ")[2] for text in found.get("assumed", [])] == plain.get("assumed", [])


def test_a_stack_slows_all_sections(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Of two models side by side, one with experts: times lie between those of factors without and with them."""
    dense, sparse = ("dense", "gpt2", 4), ("sparse", str(tmp_path / "moe.yaml"), 4)
    shape = {"layers": 4, "hidden": 256, "heads": 8, "ffn": 512, "vocab": 512, "experts": 8, "top_k": 2}
    (tmp_path / "moe.yaml").write_text(json.dumps(shape))

    def step(*models: tuple[str, str, int]) -> int:
        file = sections_file(tmp_path, *models)
        return int(
            printed(capsys, "predict", "--sections", file, "--system", "dgx-h100", "--stack", "default")["step_time_ns"]
        )

    alone = step(dense), step(sparse)
    both = step(dense, sparse)
    assert max(alone) * 0.9 < both < max(alone) * 1.1


def test_the_end_of_an_id_says_the_precision(capsys: pytest.CaptureFixture[str]):
    serve = ["--serve", "--prefill", "64", "--decode", "2", "--no-write", "--json"]

    def weights(model: str, *more: str) -> tuple[int, str]:
        assert main(["generate", model, *serve, *more]) == 0
        said = capsys.readouterr()
        return json.loads(said.out)["weights_bytes"], said.err

    plain, silent = weights("Qwen/Qwen3-8B")
    eight, told = weights("Qwen/Qwen3-8B-FP8")
    assert (eight, weights("lab/Qwen3-8B-NVFP4")[0] < 3 * plain // 10) == (plain // 2, True)
    assert "note: precision fp8, as the model id says" in told
    assert "precision" not in silent
    assert weights("Qwen/Qwen3-8B-FP8", "--precision", "bf16")[0] == plain
    assert stored_as("lab/FP8-Foo-8B") == ""  # a word elsewhere says nothing


@pytest.mark.parametrize("verb", ["predict", "plan", "search", "energy", "simulate"])
def test_several_ranks_on_a_device_without_a_link_are_refused(verb: str, tiny: str, tmp_path: Path, capsys):
    asked = [tiny, "--gpus", "2"]
    if verb == "simulate":
        asked = [str(tmp_path / "job")]
        assert main(["generate", tiny, "--gpus", "2", "-o", asked[0]]) == 0
    assert main([verb, *asked, "--system", "mi355x"]) == 2
    assert "`mi355x` is one device, and its link to others is not given" in capsys.readouterr().err
    assert main(["predict", tiny, "--system", "mi355x"]) == 0


def test_the_memory_of_a_device_is_a_limit(tiny: str, capsys):
    assert main(["generate", tiny, "--gpus", "2", "--memory", "mcu"]) == 2
    assert "does not fit" in capsys.readouterr().err
