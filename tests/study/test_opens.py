"""An answer is known only while everything that its commands read is as it was."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from etude.decide.study import study
from etude.decide.study.results import FILE
from etude.surface.cli.executing import executed


def run(*words: str) -> None:
    code, _, err = executed([*words])
    assert code == 0, err


MODEL = {"name": "mine", "hidden": 256, "layers": 2, "heads": 4, "ffn": 1024, "vocab": 1000}
SYSTEM = "name: s\ndevice: h100\nlevels: [{name: net, kind: switch, size: 4, bandwidth: %d, latency: 1us}]\n"
REQUESTS = "arrival_s,prompt_tokens,output_tokens\n" + "{},100,5\n" * 8


def model(folder: Path, second: bool) -> str:
    (folder / "m.yaml").write_text(json.dumps(MODEL | {"layers": 8 if second else 2}))
    return f"predict {folder}/m.yaml --gpus 2 --system dgx-h100 --global-batch 4 --seq 128"


def system(folder: Path, second: bool) -> str:
    (folder / "s.yaml").write_text(SYSTEM % (10**9 if second else 10**11))
    run("generate", "micro", "all_reduce", "--ranks", "4", "--bytes", "1MiB", "-o", f"{folder}/j", "-f")
    return f"simulate {folder}/j --system {folder}/s.yaml"


def requests(folder: Path, second: bool) -> str:
    (folder / "r.csv").write_text(REQUESTS.format(*[i * (3 if second else 1) for i in range(8)]))
    return f"serve llama3-8b --system dgx-h100 --requests {folder}/r.csv"


def recorded(folder: Path, second: bool) -> str:
    run(
        "generate",
        "micro",
        "all_reduce",
        "--ranks",
        "8" if second else "4",
        "--bytes",
        "1MiB",
        "-o",
        f"{folder}/j",
        "-f",
    )
    return f"info {folder}/j"


def columns(folder: Path, second: bool) -> str:
    size = "8" if second else "4"
    words = ("generate", "micro", "all_reduce", "--ranks", size, "--bytes", "1MiB", "--to", "parquet")
    run(*words, "-o", f"{folder}/j", "-f")
    return f"query {folder}/j 'select count(*) as n from nodes'"


@pytest.mark.parametrize("of", [model, system, requests, recorded, columns])
def test_an_input_elsewhere_that_changes_is_read_again(of: Callable[[Path, bool], str], tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    command = of(away, False)
    file = tmp_path / "s.json"
    file.write_text(json.dumps({"run": {"it": f"{command} --json"}, "metrics": {"all": "it"}}))

    def found() -> tuple[Any, int]:
        outcome = study(file).outcome(out=tmp_path / "out", execute=executed)
        assert not outcome.points[0]["error"]
        return outcome.points[0]["all"], outcome.ran

    first, ran = found()
    assert ran == 1
    assert found() == (first, 0)
    assert of(away, True) == command
    second, ran = found()
    assert ran == 1 and second != first
    assert found() == (second, 0)


def test_a_file_that_only_another_file_names(tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    requests(away, False)
    text = {
        "machine": {"system": "dgx-h100", "nodes": 1}, "horizon": "1h",
        "workloads": {"chat": {"serve": "llama3-8b", "replicas": 1, "requests": f"{away}/r.csv"}},
    }  # fmt: skip
    file = tmp_path / "s.json"
    file.write_text(
        json.dumps({"run": {"it": "world run w.yaml --json"}, "files": {"w.yaml": text}, "metrics": {"all": "it"}})
    )
    before = study(file).outcome(out=tmp_path / "out", execute=executed)
    assert not before.points[0]["error"]
    assert study(file).outcome(out=tmp_path / "out", execute=executed).ran == 0
    requests(away, True)
    after = study(file).outcome(out=tmp_path / "out", execute=executed)
    assert after.ran == 1 and after.points[0]["all"] != before.points[0]["all"]


def test_what_was_read_is_kept_with_the_answer(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    away = tmp_path / "away"
    away.mkdir()
    file = tmp_path / "s.json"
    file.write_text(json.dumps({"run": {"it": f"{system(away, False)} --json"}, "metrics": {"all": "it"}}))
    study(file).outcome(out=tmp_path / "out", execute=executed)
    opened = json.loads(pq.read_table(tmp_path / "out" / FILE)["opened"][0].as_py())
    assert f"{away}/s.yaml" in opened and all(path.startswith(str(away)) for path in opened)


def test_all_of_a_folder_that_a_command_names_counts_also_where_another_process_reads_it(tmp_path: Path) -> None:
    run_of = tmp_path / "away" / "run"
    run_of.mkdir(parents=True)
    (run_of / "rank0.json").write_text("1")
    file = tmp_path / "s.json"
    file.write_text(json.dumps({"run": {"it": f"info {run_of} --json"}, "metrics": {"n": "n"}}))

    def ran() -> int:
        return study(file).outcome(out=tmp_path / "out", execute=lambda words: (0, '{"n": 1}', "")).ran

    assert [ran(), ran()] == [1, 0]
    (run_of / "rank0.json").write_text("2")
    assert [ran(), ran()] == [1, 0]
    (run_of / "rank1.json").write_text("2")
    assert [ran(), ran()] == [1, 0]
