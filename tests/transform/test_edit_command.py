"""etude edit, as a user calls it."""

import json
from pathlib import Path

import pytest

import etude
from etude.surface.cli import main


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("edit") / "job"
    assert main(["generate", "micro", "all_gather", "--ranks", "4", "--bytes", "1MB", "-o", str(out)]) == 0
    return out


def test_it_writes_the_job_and_says_what_it_did(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "zipped"
    text = "compress ratio=2 encode=100GB/s decode=100GB/s"
    capsys.readouterr()
    assert main(["edit", str(job), "-o", str(out), text, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (step,) = found["edits"]
    assert step["name"] == "compress"
    assert step["nodes"] == 4
    assert step["bytes_before"] == 2 * step["bytes_after"]
    assert etude.diff(etude.open(out), etude.edit(etude.open(job), text)) is None


def test_et_files_are_read_back_and_run_as_astra_sim_would(job: Path, tmp_path: Path):
    out = tmp_path / "et"
    assert (
        main(["edit", str(job), "-o", str(out), "--to", "et", "--dialect", "astra", "compress ratio=2 encode=1GB/s"])
        == 0
    )
    again = etude.open(out)
    assert [len(again.trace(r)) for r in range(4)] == [2 * len(etude.open(job).trace(0))] * 4
    network, system = tmp_path / "net.yml", tmp_path / "sys.json"
    network.write_text("topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n")
    system.write_text(json.dumps({
        "scheduling-policy": "LIFO", "endpoint-delay": 10, "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 4, "all-reduce-implementation": ["ring"], "all-gather-implementation": ["ring"],
        "reduce-scatter-implementation": ["ring"], "all-to-all-implementation": ["direct"],
        "collective-optimization": "localBWAware", "local-mem-bw": 50, "boost-mode": 0,
    }))  # fmt: skip
    done = main(["simulate", str(out), "--astra-network", str(network), "--astra-system", str(system)])
    assert done == 0


def test_a_mistake_writes_nothing(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "nothing"
    assert main(["edit", str(job), "-o", str(out), "compress ratio=2", "speed by=2 kind=collective"]) == 2
    assert not out.exists()
    problem = capsys.readouterr().err
    assert "no time to change" in problem
    assert "--times-on" in problem


def test_a_page_of_before_and_after(job: Path, tmp_path: Path):
    page = tmp_path / "whatif.html"
    done = main(["report", str(job), "--edit", "compress ratio=2", "--system", "dgx-h100", "-o", str(page)])
    assert done == 0
    assert "job before" in page.read_text()
    assert "job after" in page.read_text()
    assert main(["report", str(job), str(job), "--edit", "relax", "-o", str(tmp_path / "x.html")]) == 2


def test_edits_lie_in_a_file(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    example = Path(__file__).parent.parent.parent / "examples" / "edits" / "compressed.txt"
    sharded = tmp_path / "sharded"
    assert main(["generate", "gpt2", "--gpus", "4", "--zero", "3", "-o", str(sharded)]) == 0
    assert main(["edit", str(sharded), "--no-write", f"@{example}", "--system", "dgx-h100"]) == 0
    wrong = tmp_path / "wrong.txt"
    wrong.write_text("# one\nspeed bye=2\n")
    capsys.readouterr()
    assert main(["edit", str(job), "--no-write", f"@{wrong}"]) == 2
    assert "wrong.txt:2: edit `speed`: column 7: unknown key `bye`" in capsys.readouterr().err
    assert main(["edit", str(job), "--no-write", f"@{tmp_path / 'nothing'}"]) == 2


def test_an_edit_of_a_name_that_is_not_there_is_an_error(job: Path, capsys: pytest.CaptureFixture[str]):
    recording = Path(etude.__file__).parent / "capture" / "sample"
    assert main(["edit", str(recording), "--no-write", "speed op=aten::mmm by=2"]) == 2
    said = capsys.readouterr().err
    assert "`speed op=aten::mmm by=2` selects no nodes: no operator has that name" in said
    assert "did you mean op=aten::mm?" in said
    assert main(["edit", str(job), "--no-write", "compress group=edp ratio=2"]) == 2
    said = capsys.readouterr().err
    assert "selects no nodes: no group has that name" in said and "groups of this job: world" in said


def test_an_edit_that_selects_nothing_says_so(job: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["edit", str(job), "--no-write", "compress bytes=1TB.. ratio=2", "--json"]) == 0  # a sweep may go past
    assert json.loads(capsys.readouterr().out)["notes"] == ["`compress bytes=1000000000000.. ratio=2` selects no nodes"]
