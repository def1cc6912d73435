"""Code runs if the command line names it, or with `--trust`; what only a file names is refused before it runs."""

from pathlib import Path

import pytest

from etude.base.errors import UsageError
from etude.base.trust import check_code, command_line, limited, trusting
from etude.surface.cli import main

CODE = """
from pathlib import Path
Path("ran").write_text("x")
def route(request, replicas, now_s): return 0
def share(wanted, lenders, node_devices): return {}
def shift(view): return None
"""
SERVE = "serve gpt2 --system dgx-h100 --rate 4 --count 2 --prompt 8 --output 2"
WORLD = """
machine: {system: dgx-h100, nodes: 2}
horizon: 2min
policies: {share: 'theirs.py:share'}
workloads:
  train: {train: gpt2, gpus: 8, micro_batch: 1, global_batch: 8, nodes: 1, lend_to: chat}
  chat: {serve: gpt2, rate: 1, count: 2, nodes: 1}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ETUDE_TRUST", raising=False)
    Path("theirs.py").write_text(CODE)
    Path("router.yaml").write_text("router: theirs.py:route\nreplicas: 2\n")
    Path("hook.yaml").write_text("hook: evict=theirs.py:route\n")
    Path("program.yaml").write_text("network: 'external:python theirs.py'\n")
    Path("pools.yaml").write_text("model: gpt2\npools: [{system: dgx-h100, count: 1, hook: 'evict=theirs.py:route'}]\n")
    Path("world.yaml").write_text(WORLD)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        f"{SERVE} --yaml router.yaml",
        f"{SERVE} --yaml hook.yaml",
        "simulate job --system dgx-h100 --yaml program.yaml",
        "collect --yaml command.yaml -o out",
        "world run world.yaml",
    ],
)
def test_what_a_file_names_does_not_run(command: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("command.yaml").write_text("command: [python, theirs.py]\n")
    if "job" in command:
        assert main(["generate", "gpt2", "--gpus", "2", "-o", "job"]) == 0
    assert main(command.split()) == 2
    said = capsys.readouterr().err
    assert "is code that a file names" in said
    assert "--trust" in said
    assert not Path("ran").exists()


def test_the_command_line_and_trust_run_it(place: Path) -> None:
    assert main(f"{SERVE} --router theirs.py:route --replicas 2".split()) == 0
    assert Path("ran").exists()
    Path("ran").unlink()
    assert main(f"{SERVE} --yaml router.yaml --trust".split()) == 0
    assert Path("ran").exists()


def test_a_name_is_whole() -> None:
    with command_line(["evict=mine.py:one,batch=mine.py:two", "external:python net.py x", "--format"]):
        for known in ("mine.py:one", "mine.py:two", "python net.py x"):
            check_code(known)
        for other in ("ine.py:one", "mine.py:tw", "./mine.py:one", "rm", "net"):
            with pytest.raises(UsageError, match="is code that a file names"):
                check_code(other)
            with trusting():
                check_code(other)
        with limited(), trusting(), pytest.raises(UsageError, match="runs code"):
            check_code("mine.py:one")
    check_code("rm")  # a program that calls Etude decides for itself
