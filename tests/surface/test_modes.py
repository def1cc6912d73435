"""Old spellings mean the verbs that they have become; axes of a plan that nothing reads are refused, and no others."""

from pathlib import Path

import pytest

import etude
from etude.base.errors import UsageError
from etude.base.parameters import FLAGS
from etude.surface.cli import main
from etude.surface.cli.app import _verb_meant
from etude.surface.cli.registry import verb_named
from etude.surface.verb import resolve


@pytest.mark.parametrize(
    ("line", "verb", "rest"),
    [
        ("simulate job/ --system dgx-h100", "simulate", "job/ --system dgx-h100"),
        ("simulate a/ b/ --at 0,5ms -s dgx-h100", "simulate jobs", "a/ b/ --at 0,5ms -s dgx-h100"),
        ("simulate a/ b/ -s dgx-h100", "simulate jobs", "a/ b/ -s dgx-h100"),
        ("simulate jobs a/ b/", "simulate jobs", "a/ b/"),
        ("simulate w --astra-network n --astra-system s", "simulate astra", "w --astra-network n --astra-system s"),
        ("predict gpt2 --serve --tp 2", "predict serve", "gpt2 --tp 2"),
        ("predict --sections f.yaml", "predict sections", "--sections f.yaml"),
        ("predict --rows f.csv", "predict rows", "--rows f.csv"),
        ("predict gpt2 --gpus 8", "predict", "gpt2 --gpus 8"),
        ("generate gpt2 --serve", "generate serve", "gpt2"),
        ("generate --sections=f.yaml", "generate sections", "--sections=f.yaml"),
    ],
)
def test_an_old_spelling_means_a_verb(line: str, verb: str, rest: str) -> None:
    name, *args = line.split()
    assert _verb_meant(name, args) == (verb, rest.split())


def test_two_systems_for_one_run_are_refused() -> None:
    with pytest.raises(UsageError, match="two systems"):
        _verb_meant("simulate", ["w", "--astra-network", "n", "--astra-system", "s", "--system", "dgx-h100"])


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"tp_chunks": "4"}, "--tp-chunks is read only with --tp"),
        ({"cp_kind": "ulysses"}, "--cp-kind is read only with --cp"),
        ({"prefetch": "3", "zero": "1"}, "--prefetch is read only with --zero 3 or --directives"),
        ({"bucket": "1000", "zero": "3"}, "--bucket is read only with --zero 0"),
        ({"length_seed": "1"}, "--length-seed is read only with --lengths"),
        ({"graphs": True}, "--graphs is read only with --host"),
        ({"dispatch": "activations", "precision": "fp8"}, "--dispatch is read only for models with experts"),
    ],
)
def test_an_axis_that_nothing_reads_is_refused(axes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve(verb_named("generate"), {"model": "gpt2", "gpus": "8", **axes}, FLAGS)


def test_what_an_axis_needs_may_be_in_the_file_and_its_default_needs_nothing(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("tp: 2\n")
    asked = {"model": "gpt2", "gpus": "8", "plan": str(plan), "tp_chunks": "4"}
    assert resolve(verb_named("generate"), asked, FLAGS).inputs.plan.tp_chunks == 4
    resolve(verb_named("generate"), {"model": "gpt2", "gpus": "8", "tp_chunks": "1", "etp": "1"}, FLAGS)


def test_python_refuses_the_same() -> None:
    with pytest.raises(UsageError, match="`tp_chunks` is read only with `tp`"):
        etude.generate("gpt2", gpus=8, tp_chunks=4)
    with pytest.raises(UsageError, match="`moe_skew` is read only for models with experts"):
        etude.plan("gpt2", "dgx-h100", gpus=8, moe_skew=1.5)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("simulate job/ --system dgx-h100 --seed 3", "--seed is read only with --jitter"),
        ("simulate job/ --system dgx-h100 --routing spray", "--routing is read only by networks with links"),
        ("simulate job/ --system dgx-h100 --link-stats s/", "--link-stats is read only by networks with links"),
        ("simulate job/ --system dgx-h100 --slow-rank 3=2 --slow-rank 3=4", "`3` is given twice"),
        ("simulate job/ --system dgx-h100 --grain line=128B", "limits nothing"),
        ("predict gpt2 --gpus 8 --system dgx-h100 --seeds 3", "--seeds is read only with --jitter"),
        ("predict gpt2 --hf config.json --system dgx-h100", "only one of --model and --hf"),
        ("predict gpt2 --serve --stack nemo --system dgx-h100", "--stack is not read by `etude predict serve`"),
        (
            "predict gpt2 --serve --requests r.csv --prefill 9 --system dgx-h100",
            "--prefill is not read with --requests",
        ),
        ("generate gpt2 --step-overhead 5ms", "--step-overhead is not read by `etude generate`"),
        ("generate gpt2 --no-write -o job/", "only one of --out and --no-write"),
        ("generate micro ring --ranks 4 --seed 3", "--seed is read only with --pattern permutation"),
    ],
)
def test_what_was_ignored_is_refused(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    assert message in capsys.readouterr().err
