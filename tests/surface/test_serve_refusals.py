"""What `etude serve` was given and did not read, in 0.1.0, is refused by its name; nothing of it is computed."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.base.errors import UsageError
from etude.surface.cli import main
from etude.surface.cli.serve import meant
from surface.stage import make_stage

FLOW = "serve --workflow swe_agent --models llama3-8b,llama3-8b --system dgx-h100 --json"
SPLIT = (
    "serve llama3-8b --requests recommend:users=10,to_users=8,items=50,to_items=90 --rate 20 "
    '--hbm-split "0.3 room=4GB link=25GB/s" --system dgx-a100 --json'
)
DRAWN = "serve llama3-8b --system dgx-h100 --rate 4"
FILE = "serve llama3-8b --system dgx-h100 --requests r.csv"
IMAGES = "serve flux.1-dev --system dgx-h100 --degree fixed:1"
OFFLOAD = 'serve llama3-8b --system h200-server --offload "kv path=dual"'
POOL = "serve pools.yaml --requests r.csv"
CASES = {
    FLOW: (
        "--tp 8", "--precision fp8", "--kv-dtype fp8", "--kv-codec fp8", "--requests nofile.csv", "--rate 99",
        "--window 60s:62s", "--job-out jj", "--requests-out q.parquet", "--ops db", "--max-loras 2", "--count 3",
        "--preemption-mode swap", "--scheduling-policy edf", "--scheduling-policy fair",
    ),
    SPLIT: (
        "--max-num-seqs 1", "--disaggregate 1:1", "--scheduling-policy shortest", "--out hh", "--count 3",
        "--window 1s:2s", "--sort", "--prompt 8",
    ),
    "serve nonsense-model --rows rows.csv": ("--system no-such-system", "--router bogus", "--slo garbage", "--seed 1"),
    "serve --run measured --config a": ("--tp 2", "--max-num-seqs 3", "--replicas 2", "--rate 3", "--seed 1"),
    "serve llama3-8b --system dgx-h100 --run result.json": (
        "--config a", "--steps grid", "--rate 3", "--first 2", "--slo ttft=1s", "--out hh", "--requests-out q",
        "--seed 1", "--count 5",
    ),
    DRAWN: (
        "--kv-codec fp8", "--kv-choose learn", "--link 3GB/s", "--link-latency 1us", "--link-later 5s:1GB/s",
        "--swap-bandwidth 3GB/s", "--acceptance 0.5", "--draft-model gpt2", "--max-lora-rank 8", "--plans tp=1;tp=2",
        "--set-up 3s", "--load 3GB/s", "--tenant-weights a=3", "--first 3", "--sort", "--window 1s:2s", "--job-out jj",
        "--force", "--config x", "--steps grid", "--host-memory 3GB", "--gpus 4", "--images-at-once 2", "--encode 3ms",
        "--models gpt2", "--order program", "--choose pixie", "--place heft",
    ),
    DRAWN + " --reserve": ("--whole-prompt",),
    DRAWN + " --lengths r.csv": ("--prompt 8", "--output 8"),
    DRAWN + " --disaggregate 1:1": ("--replicas 2", "--kv-choose learn", "--kv-quality 0.5"),
    DRAWN + " --reconfigure at=1s,tp=1": ("--plans tp=1;tp=2", "--link 3GB/s"),
    DRAWN + " --hook route=mine.py:route": ("--router turn",),
    FILE: ("--count 3", "--prompt 8", "--output 8", "--burst 2", "--diurnal 0.8@24h", "--lengths r.csv", "--seed 1"),
    POOL: ("--tp 2", "--ep 2", "--replicas 2", "--disaggregate 1:1", "--system dgx-h100"),
    IMAGES + " --requests dit.csv": ("--count 3", "--burst 2", "--seed 1", "--set-up 3s", "--tp 2", "--max-num-seqs 3"),
    IMAGES + " --requests mix:256x256@4 --rate 2": ("--first 3", "--set-up 3s", "--router turn", "--requests-out q"),
    OFFLOAD: ("--rate 3", "--count 3", "--seed 1", "--router turn", "--replicas 2", "--slo ttft=1s", "--out hh",
              "--max-num-seqs 3", "--first 3", "--sort"),
    OFFLOAD + " --requests r.csv": ("--prompt 3", "--output 3"),
    "serve --workflow flow.yaml --devices devices.yaml": (
        "--models gpt2", "--slo latency=1s", "--out hh", "--choose pixie", "--order program", "--router turn",
        "--system dgx-h100", "--replicas 2", "--max-num-seqs 3",
    ),
    "serve --workflow flow.yaml --place mine.py:route": ("--router turn",),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("stage")
    make_stage(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.mark.parametrize(("base", "flag"), [(base, flag) for base, flags in CASES.items() for flag in flags])
def test_what_is_given_and_not_read_is_refused(base: str, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = flag.split(" ", 1)
    assert main([*shlex.split(base), *words]) == 2
    told = capsys.readouterr()
    assert words[0] in told.err and told.out == ""


def test_what_is_read_only_with_another_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*shlex.split(DRAWN), "--kv-codec", "fp8"]) == 2
    assert "--kv-codec is read only with --disaggregate" in capsys.readouterr().err
    assert main(shlex.split("serve nonsense-model --rows rows.csv")) == 2
    assert "nonsense-model" in capsys.readouterr().err


REFUSED: dict[str, dict[str, Any]] = {
    "kv_codec": {"rate_per_s": 4, "kv_codec": "fp8"},
    "cv": {"requests": "r.csv", "cv": 2.0},
    "like": {"requests": "r.csv", "like": "r.csv"},
    "count": {"requests": "r.csv", "count": 3},
    "seed": {"requests": "r.csv", "seed": 3},
    "first": {"rate_per_s": 4, "first": 3},
    "swap_bandwidth": {"rate_per_s": 4, "swap_bandwidth_bytes_per_s": 3},
    "acceptance": {"rate_per_s": 4, "engine": etude.extend.Engine(acceptance=0.5)},
    "replicas": {"rate_per_s": 4, "replicas": 2, "disaggregate": "1:1"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_python_refuses_the_same(name: str) -> None:
    with pytest.raises(UsageError, match=f"`{name}`"):
        etude.serve("llama3-8b", "dgx-h100", **REFUSED[name])


@pytest.mark.parametrize(
    ("old", "verb"),
    [
        ("llama3-8b --rate 4", "serve"), ("m --degree fixed:1", "serve images"), ("m --hbm-split 0.3", "serve split"),
        ('m --offload "experts path=auto host=h"', "serve"),
    ],
)  # fmt: skip
def test_an_old_spelling_means_a_verb(old: str, verb: str) -> None:
    assert meant(shlex.split(old)) == verb


def test_old_spellings_whose_words_changed() -> None:
    assert meant(["--rows=rows.csv"]) == ("serve rows", ["rows.csv"])
    assert meant(shlex.split("--workflow f.yaml --seed 1")) == ("serve workflow", ["f.yaml", "--seed", "1"])
    assert meant(shlex.split("--devices d --workflow f")) == ("serve devices", ["f", "--devices", "d"])
    assert meant(shlex.split("m -s dgx-h100 --run r.json")) == ("serve run", ["r.json", "m", "-s", "dgx-h100"])
    assert meant(shlex.split('m --offload "kv path=dual" --json')) == (
        "serve offload", ["m", "--json", "--path", "dual"]
    )  # fmt: skip
