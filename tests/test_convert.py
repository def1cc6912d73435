"""`etude convert` keeps to its place: what it may write, replace and refuse."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

import etude
from etude.base.errors import UsageError
from etude.store import chakra
from etude.surface.cli import main
from etude.surface.cli.output import emit
from training_step import training_step


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    chakra.write_job(training_step(), folder)
    return folder


@pytest.mark.parametrize("to", ["et", "json", "parquet"])
def test_every_format_comes_back_the_same(run: Path, tmp_path: Path, to: str, capsys) -> None:
    assert main(["convert", str(run), str(tmp_path / "out"), "--to", to]) == 0
    capsys.readouterr()
    assert main(["diff", str(run), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == "same\n"


@pytest.mark.parametrize("name", ["../x", "a/b", ".hid", ".", "a\nb", "manifest", "a\\b"])
def test_a_name_that_is_no_file_name_is_refused(run: Path, tmp_path: Path, name: str, capsys) -> None:
    before = sorted(p.name for p in tmp_path.rglob("*"))
    assert main(["convert", str(run), str(tmp_path / "out"), "--name", name]) == 2
    assert "is not a valid job name" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


def test_the_name_in_a_manifest_is_checked_too(run: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "p"
    assert main(["convert", str(run), str(folder), "--to", "parquet"]) == 0
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step"', '"../step"'))
    assert main(["info", str(folder)]) == 2
    assert "is not a valid job name" in capsys.readouterr().err


def test_force_replaces_traces_and_nothing_else(run: Path, tmp_path: Path, capsys) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    assert main(["convert", str(run), str(home), "--force"]) == 2
    assert "contains files that Etude did not write: thesis.txt" in capsys.readouterr().err
    assert (home / "thesis.txt").read_text() == "years of work"
    assert main(["convert", str(run / "step.3.et"), str(run), "--force"]) == 2
    assert "contains the input" in capsys.readouterr().err
    assert len(list(run.glob("*.et"))) == 8
    assert main(["convert", str(run), str(run / "step.0.et"), "--force"]) == 2
    assert (run / "step.0.et").is_file()
    assert main(["convert", str(run), str(run), "--force"]) == 0
    assert len(list(run.glob("*.et"))) == 8


def test_a_job_named_like_a_rank_is_read_back_from_json(run: Path, tmp_path: Path) -> None:
    assert main(["convert", str(run), str(tmp_path / "out"), "--to", "json", "--name", "run.1"]) == 0
    assert main(["diff", str(run), str(tmp_path / "out")]) == 0


def test_a_foreign_manifest_does_not_hide_the_traces(run: Path) -> None:
    (run / "manifest.json").write_text('{"who": "somebody else"}')
    assert main(["info", str(run)]) == 0


def test_columns_of_one_name_are_all_in_the_json(capsys) -> None:
    emit(pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["rank", "rank", "n"]), json=True)
    assert json.loads(capsys.readouterr().out) == [{"rank": 1, "rank_2": 2, "n": 3}]


def test_options_that_parquet_cannot_heed_are_refused(run: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "p"
    assert main(["convert", str(run), str(folder), "--to", "parquet"]) == 0
    for command in (["info", str(folder)], ["query", str(folder), "select 1"]):
        assert main([*command, "--groups", str(run / "step.json")]) == 2
        assert main([*command, "--max-bytes", "10B"]) == 2
    assert "more than the limit of 10" in capsys.readouterr().err


def test_usage_error_is_the_type() -> None:
    with pytest.raises(UsageError):
        training_step().replace(name="../x")


@pytest.mark.parametrize("to", ["et", "json", "parquet"])
def test_a_profile_without_a_device_is_converted(tmp_path: Path, to: str, capsys) -> None:
    """Two operators one after another: no node's recorded time differs from its own."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 5, "args": {"External id": n}}
        for n, (name, ts) in enumerate((("aten::ones", 10), ("aten::mul", 20)), 1)
    ]
    profile, out = tmp_path / "cpu.json", tmp_path / "out"
    profile.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert main(["convert", str(profile), str(out), "--to", to]) == 0
    assert "wrote" in capsys.readouterr().err
    assert main(["diff", str(profile), str(out)]) == 0


SKEWED = ["generate", "mixtral-8x7b", "--gpus", "4", "--ep", "4", "--seq", "128", "--moe-skew", "1.3"]


@pytest.mark.parametrize("dialect", ["plain", "astra"])
def test_one_step_and_two_give_the_same_files(tmp_path: Path, dialect: str, capsys) -> None:
    """A skewed job, generated into `.et` files, and generated and then converted."""
    one, job, two = tmp_path / "one", tmp_path / "job", tmp_path / "two"
    asked = ["--to", "et", "--dialect", dialect]
    assert main([*SKEWED, *asked, "-o", str(one), "--json"]) == 0
    shown = capsys.readouterr()
    assert main([*SKEWED, "-o", str(job)]) == 0
    assert main(["convert", str(job), str(two), *asked]) == 0
    converted = capsys.readouterr().err
    files = sorted(path.name for path in one.iterdir())
    assert len(files) >= 5
    assert files == sorted(path.name for path in two.iterdir())
    for name in files:
        if name != "card.yaml":
            assert (one / name).read_bytes() == (two / name).read_bytes(), name
    problems = " ".join(json.loads(shown.out)["astra_problems"])
    hangs = "it hangs if members of a collective have different sizes"
    assert (hangs in problems) == (hangs in shown.err) == (hangs in converted) == (dialect == "plain")
    assert ("`--dialect astra` writes files that it can run" in converted) == (dialect == "plain")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("--to parquet --dialect astra", "--dialect is read only with --to et or --to json"),
        ("--to astra --system dgx-h100 --dialect plain", "--dialect is read only with --to et or --to json"),
        ("--to parquet --compress gz", "--compress is read only with --to et or --to json"),
        ("--to json --no-fold", "--fold is read only with --to parquet"),
        ("--to et --system dgx-h100", "--system is read only with --to astra or --to flows or --to simai"),
        ("--to flows --system dgx-h100 --name a", "--name is read only with --to et"),
        ("--ranks 4", "--ranks is read only where PATH is a text workload"),
        ("--passes 4", "--passes is read only where PATH is a text workload"),
        ("--to astra", "`--to astra` needs a system"),
        ("-o again", "OUT is given twice"),
    ],
)
def test_what_a_format_does_not_read_is_refused(run: Path, tmp_path: Path, asked: str, said: str, capsys) -> None:
    assert main(["convert", str(run), str(tmp_path / "out"), *asked.split()]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_text_workload_has_no_group_file(tmp_path: Path, capsys) -> None:
    (tmp_path / "w.txt").write_text("MICRO\n1\nl0 -1 5 NONE 0 5 NONE 0 5 ALLREDUCE 1048576 5\n")
    asked = ["convert", str(tmp_path / "w.txt"), str(tmp_path / "out"), "--ranks", "2"]
    assert main([*asked, "--groups", str(tmp_path / "g.json")]) == 2
    assert "--groups was given, but this run does not read it" in capsys.readouterr().err
    assert main([*asked, "--passes", "2"]) == 0


@pytest.mark.parametrize("more", [{"compress": "gz"}, {"dialect": "astra"}, {"system": "dgx-h100"}])
def test_python_refuses_what_a_format_does_not_read(tmp_path: Path, more: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=f"`{next(iter(more))}` is read only with `to`"):
        etude.convert(training_step(), tmp_path / "out", **more)
