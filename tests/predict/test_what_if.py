"""predict --edit: before and after, with the same noise."""

import json

import pytest

from etude.surface.cli import main

SMALL = ["predict", "tiny.yaml", "--gpus", "8", "--zero", "3", "--global-batch", "8", "--no-memory-check", "--json"]
MODEL = "name: tiny\nlayers: 4\nhidden: 512\nheads: 8\nffn: 2048\nvocab: 1000\nseq: 512\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "tiny.yaml").write_text(MODEL)
    monkeypatch.chdir(tmp_path)


def said(capsys, *more: str) -> dict:
    capsys.readouterr()
    assert main([*SMALL, "--system", "dgx-h100", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_edit_that_changes_nothing_takes_the_same_time(capsys):
    found = said(capsys, "--edit", "compress ratio=1", "--jitter", "compute=0.2", "--seed", "4")
    assert found["baseline"]["step_time_ns"] == found["edited"]["step_time_ns"]
    assert found["speedup"] == 1
    assert [one["name"] for one in found["edits"]] == ["compress"]


def test_before_and_after(capsys):
    plain = said(capsys)
    found = said(capsys, "--edit", "compress group=dp ratio=2", "--edit", "speed op=aten::mm by=2")
    assert found["baseline"]["step_time_ns"] == plain["step_time_ns"]
    assert found["edited"]["step_time_ns"] < plain["step_time_ns"]
    assert found["step_time_ns"] == found["edited"]["step_time_ns"]  # as a study reads it
    assert found["edits"][0]["bytes_after"] < found["edits"][0]["bytes_before"]


def test_edits_that_cost_more_than_they_bring_are_told(capsys):
    assert said(capsys, "--edit", "speed by=2")["findings"] == []
    capsys.readouterr()
    assert main([*SMALL[:-1], "--system", "dgx-h100", "--edit", "speed by=0.5"]) == 0
    assert "slower than the baseline" in capsys.readouterr().err
    found = said(capsys, "--edit", "speed by=0.5")
    assert found["findings"] == [f"the edited step is {1 / found['speedup'] - 1:.1%} slower than the baseline"]


@pytest.mark.parametrize(
    ("edit", "plan", "more"),
    [
        ("recompute module=*_norm", "selective:norm", ()),
        ("recompute module=*.ffn.*", "selective:ffn", ("--pp", "2")),
        ("recompute module=layers.*", "full", ("--lengths", "256:0.5,512:0.5")),
    ],
)
def test_recompute_has_the_memory_of_the_plan_that_does_the_same(capsys, edit: str, plan: str, more: tuple[str, ...]):
    found, wanted = said(capsys, *more, "--edit", edit), said(capsys, *more, "--recompute", plan)
    assert found["memory_peak_bytes"] == wanted["memory_peak_bytes"] < found["baseline"]["memory_peak_bytes"]
    assert found["flops"] == wanted["flops"] > found["baseline"]["flops"]


@pytest.mark.parametrize("more", [("module=*.qkv",), ("module=layers.1.*",), ("micro_batch=1", "module=layers.*")])
def test_recompute_of_what_no_plan_does_leaves_the_memory_and_says_so(capsys, more: tuple[str, ...]):
    two = ("--gpus", "2", "--micro-batch", "2")  # on each rank two micro-batches
    assert main([*SMALL, "--system", "dgx-h100", *two, "--edit", " ".join(["recompute", *more])]) == 0
    answer = capsys.readouterr()
    assert "memory is that of the unchanged job" in answer.err
    found = json.loads(answer.out)
    assert found["memory_peak_bytes"] == found["baseline"]["memory_peak_bytes"]
    assert found["flops"] > found["baseline"]["flops"]


def test_options_of_the_simulation_are_taken(capsys):
    plain = said(capsys)
    slow = said(capsys, "--slow-rank", "3=2", "--collective", "all_gather=ring")
    assert slow["step_time_ns"] > 1.2 * plain["step_time_ns"]
    seeds = said(capsys, "--jitter", "action=0.3", "--seeds", "3", "--edit", "speed by=2")["seeds"]
    assert len({one["baseline_ns"] for one in seeds}) == 3
    assert all(one["edited_ns"] < one["baseline_ns"] for one in seeds)


def test_gains_of_compression_fall_with_faster_links(capsys, tmp_path):
    """ZipCCL's shape: worth much on slow links, nothing on fast ones; it never costs."""
    gains = []
    for gbit in (5, 20, 80, 3200):
        (tmp_path / "links.yaml").write_text(
            "name: links\ndevice: h100\nlevels:\n"
            f"  - {{name: net, kind: switch, size: 8, bandwidth: {gbit}Gb/s, latency: 5us}}\n"
        )
        text = "compress group=dp ratio=1.35 encode=400GB/s decode=600GB/s when=pays"
        capsys.readouterr()
        assert main([*SMALL, "--system", "links.yaml", "--edit", text]) == 0
        gains.append(json.loads(capsys.readouterr().out)["speedup"])
    assert gains == sorted(gains, reverse=True)
    assert 1.2 < gains[0] <= 1.35
    assert gains[-1] == pytest.approx(1.0, abs=0.002)


@pytest.mark.parametrize("more", [["--serve", "--prefill", "8", "--decode", "2"], ["--rows", "x.csv"]])
def test_edits_are_of_training_steps(more: list[str], capsys):
    assert main([*SMALL, "--system", "dgx-h100", "--edit", "relax", *more]) == 2
    assert "is not read by `etude predict" in capsys.readouterr().err


SECTIONS = """
batch: 4
sections:
  teacher: {model: tiny.yaml, mode: forward, gpus: 2, plan: {tp: 2}}
  student: {model: tiny.yaml, gpus: 2, plan: {micro_batch: 1}}
borders: [{from: teacher, to: student, carries: logits}]
"""


def test_sections_take_edits(capsys, tmp_path):
    (tmp_path / "distill.yaml").write_text(SECTIONS)

    def told(*more: str) -> dict:
        capsys.readouterr()
        assert main(["predict", "--sections", "distill.yaml", "--system", "dgx-h100", "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)

    plain, same = told(), told("--edit", "compress ratio=1")
    assert same["baseline"] == {name: plain[name] for name in same["baseline"]}
    assert same["edited"]["step_time_ns"] == plain["step_time_ns"]
    half = told("--edit", "compress kind=message ratio=2", "--edit", "speed by=2")
    assert half["edits"][0]["bytes_after"] < half["edits"][0]["bytes_before"]
    assert half["speedup"] > 1
    assert half["findings"] == []
    assert (
        main(["predict", "--sections", "distill.yaml", "--system", "dgx-h100", "--edit", "scale axis=world to=8"]) == 2
    )
    assert "changes the plans" in capsys.readouterr().err
