"""`etude generate --program`: the job of a model without a training loop, and `--hf` of configs without blocks."""

import json
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.base.errors import UsageError
from etude.capture.dry.driven import DrivenProgram, input_tensors
from etude.model.schema import Collective, Kind
from etude.surface.cli import main

MODEL = Path(__file__).parent / "programs" / "dry_model.py"
INPUTS = ("--inputs", "x=float32[8,32]")


def generate(out: Path, name: str, *words: str) -> int:
    return main(["generate", "--program", f"{MODEL}:{name}", "-o", str(out), *words])


def torch_or_skip() -> Any:
    return pytest.importorskip("torch")


# -- what is asked -----------------------------------------------------------------------------------------------------


def test_inputs_have_names_types_and_sizes() -> None:
    found = input_tensors("float32[8, 3, 224], tokens=int64[4,8192]; mask = bool[4] ,scale=bf16[]")
    assert [(one.name, one.dtype, one.shape) for one in found] == [
        ("", "float32", (8, 3, 224)),
        ("tokens", "int64", (4, 8192)),
        ("mask", "bool", (4,)),
        ("scale", "bfloat16", ()),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tokens", "`tokens` is not a tensor"),
        ("tokens=int64[4", "`tokens=int64[4` is not a tensor"),
        ("to-kens=int64[4]", "is not a tensor"),
        ("tokens=int65[4]", "`int65` of `tokens=int65[4]` is not a data type"),
        ("tokens=int64[4,x]", "are not counts above 0"),
        ("tokens=int64[0]", "are not counts above 0"),
        ("a=int64[1],a=int64[1]", "`a` is given twice"),
        ("a=int64[1],int64[1]", "has no name"),
        (" ", "no tensor is given"),
    ],
)
def test_inputs_that_cannot_be_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match="--inputs") as refused:
        input_tensors(text)
    assert said in refused.value.problem


def test_the_command_of_a_program_says_what_it_was_made_of() -> None:
    asked = DrivenProgram(program="a.py:b", inputs="x=float32[8]", zero=3, clip=0, recompute="full:needed")
    words = asked.command()[1:]
    assert words[:2] == ["-m", "etude.capture.dry.driven.driver"] and DrivenProgram.from_words(words[2:]) == asked


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--program", "no.py:build", *INPUTS], "--program no.py:build: there is no file `no.py`"),
        (["--program", str(MODEL), *INPUTS], "is not FILE.py:NAME"),
        (["--program", f"{MODEL}:build"], "--inputs is missing"),
        (["--program", f"{MODEL}:build", "gpt2", *INPUTS], "only one of"),
        (["gpt2", *INPUTS], "--inputs is read only of a model that PyTorch runs"),
        (["gpt2", "--device", "h200"], "--device is read only of a model that PyTorch runs"),
        (["--program", f"{MODEL}:build", *INPUTS, "--gpus", "4", "--tp", "2"], "--tp is not read with --program"),
        (["--program", f"{MODEL}:build", *INPUTS, "--schedule", "gpipe"], "--schedule is not read with --program"),
        (["--program", f"{MODEL}:build", *INPUTS, "--zero", "1", "--gpus", "2"], "--zero 1 is not supported"),
        (["--program", f"{MODEL}:build", *INPUTS, "--precision", "fp8"], "--precision fp8 is not supported"),
        (["--program", f"{MODEL}:build", *INPUTS, "--recompute", "selective"], "--recompute selective is not"),
        (["--program", f"{MODEL}:build", *INPUTS, "--seq", "64"], "--seq is not read with --inputs"),
        (["--program", f"{MODEL}:build", *INPUTS, "--global-batch", "9"], "is not a multiple of dp 1 x micro-batch 8"),
        (["--program", f"{MODEL}:build", *INPUTS, "--memory-out", "m.csv"], "--memory-out was given"),
        (["--hf", "no.json", "--dry"], "there is no config `no.json`"),
    ],
)
def test_what_is_not_read_is_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *words, "-o", str(tmp_path / "job")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "job").exists()


def test_a_plan_of_a_file_is_refused_by_its_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.yaml").write_text("gpus: 4\npp: 2\n")
    assert generate(tmp_path / "job", "build", *INPUTS, "--plan", str(tmp_path / "plan.yaml")) == 2
    assert "plan.yaml: `pp` is not read with --program" in capsys.readouterr().err


# -- a function of a file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "has no `nothing`"),
        ("number", "`number` is of the type int, and no function"),
        ("sizes", "`sizes()` returns list, not a module"),
        ("wide", "cannot be called without arguments: missing a required argument: 'width'"),
        ("frozen", "no weight that is trained"),
    ],
)
def test_what_is_not_a_model_is_said(name: str, said: str) -> None:
    torch = torch_or_skip()
    from etude.capture.dry.driven.model import built_model
    from etude.capture.dry.problems import DrivenError

    with pytest.raises(DrivenError) as refused:
        built_model(torch, DrivenProgram(program=f"{MODEL}:{name}"))
    assert said in refused.value.problem


def test_blocks_are_the_outermost_modules_that_are_repeated() -> None:
    torch = torch_or_skip()
    from etude.capture.dry.driven.plan import repeated_blocks

    nn = torch.nn

    def inner() -> Any:
        return nn.Sequential(nn.ModuleList([nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))]))

    model = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"a": inner(), "b": inner()}), nn.Linear(2, 2), nn.ReLU())
    assert [name for _, name, _ in repeated_blocks(torch, model)] == ["a", "b"]
    assert repeated_blocks(torch, nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch_or_skip()
    out = tmp_path_factory.mktemp("driven") / "job"
    assert generate(out, "build", *INPUTS, "--gpus", "4", "--zero", "3", "--precision", "fp32", "--no-clip") == 0
    return out


def test_a_sharded_model_has_the_products_and_bytes_of_its_weights(sharded: Path) -> None:
    job = etude.open(sharded)
    assert len(job) == 4 and len(job.traces) == 1
    trace = job.traces[0]
    block, head = 2 * 32 * 64 * 4, 32 * 32 * 4  # bytes of weights; both heads are one weight
    calls = np.flatnonzero(trace.kind == Kind.COLL)
    kinds = Counter(Collective(int(trace.collective[i])).name for i in calls)
    # The root is gathered once, blocks before the forward and again before the backward pass.
    assert kinds == {"ALL_GATHER": 5, "REDUCE_SCATTER": 3}
    gathers = trace.collective == Collective.ALL_GATHER
    assert int(trace.in_bytes[gathers].sum()) == (head + 4 * block) // 4
    assert int(trace.in_bytes[trace.collective == Collective.REDUCE_SCATTER].sum()) == head + 2 * block
    names = np.array([trace.text("name", i) for i in range(len(trace))])
    one, square = 2 * 8 * 32 * 64, 2 * 8 * 32 * 32
    # Two products a block and two heads, each with its two gradients, but for that of the first input.
    assert int(trace.flops[names == "aten::mm"].sum()) == 3 * (4 * one + 2 * square) - one


def test_the_manifest_is_that_of_a_dry_run(sharded: Path) -> None:
    manifest = json.loads((sharded / "manifest.json").read_text())
    assert manifest["dry"] is True and manifest["provenance"]["tool"] == "etude generate"
    assert manifest["memory"]["peak_reserved_bytes"] >= manifest["memory"]["peak_allocated_bytes"] > 0
    assert main(["check", str(sharded)]) == 0


def test_recomputation_and_micro_batches_without_sharding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch_or_skip()
    words = ("--gpus", "2", "--global-batch", "32", "--recompute", "full:needed", "--no-clip", "--json")
    assert generate(tmp_path / "job", "Net", *INPUTS, *words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["dry"] is True and any("autocast" in one for one in told["assumptions"])
    weights = 4 * (4 * 32 * 64 + 2 * 32 * 32)
    assert told["comm_bytes_by_type"] == {"all_reduce": 2 * weights}  # once for both micro-batches, on two ranks
    trace = etude.open(tmp_path / "job").traces[0]
    names = np.array([trace.text("name", i) for i in range(len(trace))])
    phases = np.array([trace.text("phase", i) for i in range(len(trace))])
    # Of each block the first product is made again, and no more is needed; there are two micro-batches.
    assert int((phases[names == "aten::mm"] == "recompute").sum()) == 4


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ("y=float32[8,32]", "--inputs: `forward` does not take these inputs: missing a required argument: 'x'"),
        ("x=float32[8,31]", "dry_model.py:13: the model does not run with x=float32[8,31]: RuntimeError"),
    ],
)
def test_inputs_that_a_model_refuses_are_said(
    inputs: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch_or_skip()
    assert generate(tmp_path / "job", "build", "--inputs", inputs) == 2
    told = capsys.readouterr().err
    assert said in told and "Traceback" not in told
    assert not (tmp_path / "job").exists()


# -- a config of Hugging Face ------------------------------------------------------------------------------------------

UNKNOWN = {
    "architectures": ["XGLMForCausalLM"],
    "model_type": "xglm",
    "d_model": 64,
    "ffn_dim": 128,
    "num_layers": 2,
    "attention_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(UNKNOWN))
    return file


@pytest.mark.skipif(find_spec("transformers") is not None, reason="transformers is installed")
def test_without_transformers_a_config_without_blocks_is_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--hf", str(config), "-o", str(tmp_path / "job")]) == 2
    told = capsys.readouterr().err
    assert "`model_type` 'xglm' is not supported" in told and "pip install transformers" in told
    assert main(["generate", "--hf", str(config), "--dry", "-o", str(tmp_path / "job")]) == 2
    assert "pip install transformers" in capsys.readouterr().err
    assert not (tmp_path / "job").exists()


def test_a_config_without_blocks_is_built_by_transformers(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch_or_skip()
    pytest.importorskip("transformers")
    words = ["--gpus", "2", "--zero", "3", "--seq", "16", "--json", "-o", str(tmp_path / "job")]
    assert main(["generate", "--hf", str(config), *words]) == 0
    told = capsys.readouterr()
    assert "PyTorch builds the model" in told.err
    assert json.loads(told.out)["comm_bytes_by_type"]["reduce_scatter"] > 0
    assert main(["generate", "--hf", str(config), "--tp", "2"]) == 2
    assert "--tp is not read of a model that PyTorch runs" in capsys.readouterr().err
