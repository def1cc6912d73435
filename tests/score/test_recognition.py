"""Which kind a file is of, by its content alone; what is of none, empty or damaged."""

from pathlib import Path

import pytest

from etude.base.errors import EtudeError
from etude.decide.score.kinds import KINDS
from etude.decide.score.scoring import kind_of, score, scored_files
from etude.decide.score.source import look
from etude.surface.cli import main
from score_files import BENCH, OFFLOAD, OPERATORS, TABLES, TRAINING, vllm_folder


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in TABLES.items() for text in texts])
def test_tables_by_their_columns_whatever_their_name(tmp_path: Path, kind: str, text: str):
    path = tmp_path / "notes.bin"
    path.write_text(text)
    assert kind_of(path).name == kind
    fitting = [one.name for one in KINDS.values() if one.holds(look(path))]
    assert fitting == [kind]  # no other kind takes it for its own


def test_results_of_benchmark_clients():
    assert kind_of(BENCH).name == "requests"


def test_folders_of_runs(tmp_path: Path):
    vllm_folder(tmp_path / "one" / "two")
    assert kind_of(tmp_path).name == "runs"
    assert kind_of(tmp_path / "one" / "two").name == "runs"
    configs = tmp_path / "engine"
    configs.mkdir()
    (configs / "configs_a.json").write_text('{"configs": [{"config": "a-chat"}]}')
    assert kind_of(configs).name == "runs"


def test_folders_of_recordings(shared: Path):
    assert kind_of(shared / "traces" / "h200_pairs").name == "recordings"


def test_a_folder_stands_for_its_files_that_are_of_a_kind(tmp_path: Path):
    (tmp_path / "a.csv").write_text(OFFLOAD)
    (tmp_path / "b.csv").write_text("left,right\n1,2\n")
    (tmp_path / "c.csv").write_text("")
    (tmp_path / "d.csv").write_text(OPERATORS)
    found, notes = scored_files([tmp_path])
    assert found == [tmp_path / "a.csv", tmp_path / "d.csv"]
    assert notes == [f"{tmp_path / 'b.csv'} is of no known kind"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"left,right\n1,2\n", "is not of a kind that can be scored"),
        (b"\xff\xfe\x00,\x80\n", "is not of a kind that can be scored"),
        (b'{"request_throughput": 1, "input_lens": [1', "not JSON"),
    ],
)
def test_other_files_are_an_error_of_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, problem: str
):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    assert (
        main(["score", str(path), *(["--model", "llama3-8b", "--system", "dgx-h100"] if b"{" in content else [])]) == 2
    )
    told = capsys.readouterr().err
    assert problem in told
    if "kind" in problem:
        assert all(name in told for name in KINDS)


def test_a_table_without_rows_a_folder_without_files_and_no_file(tmp_path: Path):
    path = tmp_path / "x.csv"
    path.write_text(TRAINING.splitlines()[0] + "\n")
    with pytest.raises(EtudeError, match="has no rows"):
        score(path)
    (tmp_path / "none").mkdir()
    with pytest.raises(EtudeError, match="not of a kind"):
        scored_files([tmp_path / "none"])
    with pytest.raises(EtudeError, match="no such file"):
        score(tmp_path / "y.csv")


def test_a_kind_can_be_forced(tmp_path: Path):
    path = tmp_path / "x.csv"
    path.write_text(OPERATORS)
    assert score(path, kind="operators").kind == "operators"
    with pytest.raises(EtudeError, match="unknown kind `operas`"):
        score(path, kind="operas")
    with pytest.raises(EtudeError, match="cannot be read as --kind training"):
        score(path, kind="training")
