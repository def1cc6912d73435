"""A small YAML file whose aliases repeat each other means billions of values: every reader refuses it at once."""

from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from etude.base.errors import ClusterError, EtudeError
from etude.base.figures import parse, safe_loader
from etude.machine.open import open_system
from etude.run.astra.config import read_network
from etude.store import cards
from etude.surface.cli import main

NINE = ", ".join
BOMB = f"[&a [{NINE('x' * 9)}], " + ", ".join(f"&{b} [{NINE([f'*{a}'] * 9)}]" for a, b in pairwise("abcdefghi")) + "]"
"""9 values, then 9 times as many in each further list: 9^9."""


def test_what_aliases_repeat_is_counted() -> None:
    assert parse("a: &a [1, 2]\nb: [*a, *a]", "f.yaml") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}
    with pytest.raises(ClusterError, match="line 1: aliases repeat too much"):
        parse(f"name: {BOMB}", "f.yaml")
    with pytest.raises(ClusterError, match="line 2: an alias is inside what it names"):
        parse("a: 1\nb: &b {c: [*b]}", "f.yaml")
    with pytest.raises(yaml.YAMLError, match="aliases repeat"):
        list(yaml.load_all(f"a: 1\n---\nb: {BOMB}", safe_loader()))


@pytest.mark.parametrize(
    "command",
    [
        "predict FILE --system dgx-h100 --gpus 8",
        "predict gpt2 --system FILE --gpus 8",
        "predict gpt2 --system dgx-h100 --gpus 8 --stack FILE",
        "predict --yaml FILE",
        "serve gpt2 --system dgx-h100 --yaml FILE",
        "generate gpt2 --gpus 2 --directives FILE -o job",
        "world run FILE",
        "study run FILE",
        "search space FILE",
        "search gpt2 --system dgx-h100 --gpus 2 --over tp=BOMB",
        "search space FILE --set name=BOMB",
    ],
)
@pytest.mark.parametrize("text", [f"name: {BOMB}", f"- name: {BOMB}"], ids=["mapping", "list"])
def test_no_reader_unfolds_them(
    command: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bomb.yaml").write_text(text)
    words = [word.replace("FILE", "bomb.yaml").replace("BOMB", BOMB) for word in command.split()]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert len(said) < 3000


def test_files_with_readers_of_their_own(tmp_path: Path) -> None:
    card, network, graph = (tmp_path / name for name in ("card.yaml", "n.yml", "c.infragraph.yaml"))
    for path, read in ((card, cards.read), (network, read_network), (graph, open_system)):
        path.write_text(f"name: {BOMB}")
        with pytest.raises(EtudeError, match="aliases repeat") as refused:
            read(path)
        assert len(str(refused.value)) < 1000
