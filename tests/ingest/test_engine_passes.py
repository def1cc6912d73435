"""Traces of inference engines: what their annotations say of a pass, and what follows from it."""

from pathlib import Path
from typing import Any

import pytest

import etude
from etude.analyse.engine import engine_passes
from etude.analyse.metrics import metrics
from etude.capture.ingest.engine_passes import Pass, pass_of
from etude.model.schema import UNKNOWN
from etude.surface.cli import main
from recorded import device_json, event, kernel, launch, op, put


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("execute_context_2(1024)_generation_14(14)", Pass("mixed", 2, 1024, UNKNOWN, 14, 14)),
        ("execute_context_0(0)_generation_14(42)", Pass("decode", 0, 0, UNKNOWN, 14, 42)),
        ("execute_context_3(77)_generation_0(0)", Pass("prefill", 3, 77, UNKNOWN, 0, 0)),
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)",
            Pass("mixed", 9, 8155, 8430, 37, 37, 34489),
        ),
        ("execute_new_2_cached_0", Pass("prefill", new_requests=2)),
        ("execute_new_2_cached_3", Pass(new_requests=2)),
        ("execute_new_0_cached_3", Pass(new_requests=0)),
        ("step[DECODE bs=32]", Pass("decode", 0, 0, UNKNOWN, 32, 32)),
        ("step[decode bs=32]", Pass("decode", 0, 0, UNKNOWN, 32, 32)),
        ("step[EXTEND bs=2 toks=107]", Pass("prefill", 2, 107, UNKNOWN, 0, 0)),
        ("step[EXTEND bs=1 toks=1025 c_sqsq=9 c_sqsk=9 c_sk=1030]", Pass("prefill", 1, 1025, 1030, 0, 0)),
        ("step[MIXED bs=66 c=2 g=64 c_sq=2048 c_sk=2050 g_sq=64 g_sk=65600]",
         Pass("mixed", 2, 2048, 2050, 64, 64, 65600)),
        ("step[mixed bs=16 ext=900 dec=14]", Pass("mixed", 2, 900, UNKNOWN, 14, 14)),
        ("step[TARGET_VERIFY bs=4]", Pass("verify")),
        ("prefill[bs=1 tok=1024 ctx=1024 sk=1024]", Pass("prefill", 1, 1024, 1024, 0, 0)),
        ("decode[bs=64 tok=64 d=64 sk=65600]", Pass("decode", 0, 0, UNKNOWN, 64, 64, 65600)),
        ("step[idle]", None), ("step[3]", None), ("decode", None), ("execute_model", None), ("prefill", None),
        ("ProfilerStep#3", None), ("execute_context_2()_generation_1(1)", None), ("xstep[DECODE bs=1]", None),
    ],
)  # fmt: skip
def test_what_an_annotation_says(name: str, said: Pass | None) -> None:
    assert pass_of(name) == said


def passes(*names: str, lasts: tuple[float, ...]) -> dict[str, Any]:
    """A pass every 100 us, each with a kernel that begins 30 us later and lasts so long."""
    events = []
    for k, (name, length) in enumerate(zip(names, lasts, strict=True)):
        at = 100 * k
        events += [op(name, at, 90, 10 * k + 1, cat="user_annotation"), op("aten::mm", at + 10, 20, 10 * k + 2),
                   launch(at + 15, 10 * k + 3), kernel("gemm", at + 30, length, 10 * k + 3, 10 * k + 2)]  # fmt: skip
    return device_json(*events)


def opened(tmp_path: Path, *names: str, lasts: tuple[float, ...]) -> Any:
    put(tmp_path / "w.json.gz", passes(*names, lasts=lasts))
    return etude.open_run(tmp_path / "w.json.gz")


STREAM = ("step[EXTEND bs=2 toks=50]", "step[DECODE bs=2]", "step[EXTEND bs=1 toks=40]", "step[DECODE bs=3]",
          "step[DECODE bs=3]")  # fmt: skip


def test_phases_steps_and_times(tmp_path: Path) -> None:
    run = opened(tmp_path, *STREAM, lasts=(60, 20, 60, 30, 30))
    (part,) = run.parts()
    found = engine_passes(part)
    assert found.phase == ("prefill", "decode", "prefill", "decode", "decode")
    assert (found.end_ns - found.start_ns).tolist() == [60_000, 20_000, 60_000, 30_000, 30_000]
    assert found.context_requests.tolist() == [2, 0, 1, 0, 0]
    assert found.generation_requests.tolist() == [0, 2, 0, 3, 3]
    rows = {row["metric"]: row["value"] for row in metrics(run).to_pylist()}
    # kernels end at 90, 150, 290, 360 and 460 us: two requests wait 210 us for their next token, three then 100 us
    assert rows["tpot"] == pytest.approx((2 * 210 + 3 * 100) / 5 * 1e-6)
    assert rows["decode_pass_interval"] == pytest.approx((210 + 100) / 2 * 1e-6)
    assert (rows["prefill_passes"], rows["decode_passes"], rows["max_batch"]) == (2, 3, 3)
    assert rows["prefill_pass_time"] == pytest.approx(60e-6)
    assert rows["decode_pass_time"] == pytest.approx(80 / 3 * 1e-6)
    assert rows["prompt_tokens_per_second"] == pytest.approx(90 / 430e-6)
    assert rows["generated_tokens_per_second"] == pytest.approx(8 / 430e-6)
    assert "ttft" not in rows and "avg_step_time" not in rows


def test_it_is_kept_in_files_and_said(tmp_path: Path, capsys) -> None:
    run = opened(tmp_path, *STREAM, lasts=(60, 20, 60, 30, 30))
    assert main(["convert", str(tmp_path / "w.json.gz"), str(tmp_path / "et")]) == 0
    assert metrics(etude.open_run(tmp_path / "et")).equals(metrics(run))
    capsys.readouterr()
    assert main(["metrics", str(tmp_path / "w.json.gz")]) == 0
    assert "does not say when requests arrived" in capsys.readouterr().err
    assert main(["kernels", str(tmp_path / "w.json.gz"), "--by", "phase", "--csv"]) == 0
    assert [line.split(",")[:3] for line in capsys.readouterr().out.split()[1:]] == [
        ["prefill", "2", "120000"], ["decode", "3", "80000"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "names",
    [
        ("execute_new_2_cached_0", "execute_new_0_cached_2", "execute_new_0_cached_2"),  # the second may still read
        ("step[TARGET_VERIFY bs=2]", "step[DECODE bs=2]", "step[DECODE bs=2]"),
        ("execute_context_0(0)_generation_2(6)",) * 3,  # three tokens of each
        ("step[DECODE bs=2]", "step[EXTEND bs=2 toks=9]", "step[EXTEND bs=2 toks=9]"),  # one pass makes tokens
    ],
)
def test_what_cannot_be_told_is_not_said(tmp_path: Path, names: tuple[str, ...]) -> None:
    rows = {row["metric"] for row in metrics(opened(tmp_path, *names, lasts=(20, 20, 20))).to_pylist()}
    assert not rows & {"tpot", "ttft"}
    known = not names[0].startswith("execute_new") and not names[1].startswith("step[EXTEND")
    assert ("decode_pass_interval" in rows) == known  # however many tokens a pass makes


def test_of_a_pass_inside_another_the_outer_counts(tmp_path: Path) -> None:
    trace = passes("execute_context_0(0)_generation_4(4)", lasts=(20,))
    trace["traceEvents"].insert(1, event("user_annotation", "step[DECODE bs=4]", 5, 80, **{"External id": 77}))
    put(tmp_path / "w.json.gz", trace)
    (part,) = etude.open_run(tmp_path / "w.json.gz").parts()
    assert len(engine_passes(part)) == 1


def test_steps_of_the_profiler_come_first(tmp_path: Path) -> None:
    trace = passes(*STREAM[:2], lasts=(20, 20))
    trace["traceEvents"].append(op("ProfilerStep#7", 0, 500, 99, cat="user_annotation"))
    put(tmp_path / "w.json.gz", trace)
    found = etude.open(tmp_path / "w.json.gz").traces[0]
    assert set(found.step[found.step != UNKNOWN].tolist()) == {7}
    rows = {row["metric"] for row in metrics(etude.open_run(tmp_path / "w.json.gz")).to_pylist()}
    assert not rows & {"tpot", "prefill_passes", "decode_passes"}  # two passes in one step are not told apart


@pytest.mark.parametrize(
    ("name", "phase", "batch"), [("sglang_qwen3_8b_decode", "decode", 32), ("vllm_prefill_decode", "mixed", 46)]
)
def test_public_traces(shared: Path, name: str, phase: str, batch: int) -> None:
    run = etude.open_run(shared / f"traces/public/{name}.kineto.json.gz")
    rows = {row["metric"]: row["value"] for row in metrics(run).to_pylist()}
    assert rows[f"{phase}_passes"] == 1 and rows["max_batch"] == batch and "tpot" not in rows
