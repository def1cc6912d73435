"""A few words that ask for work without end are refused at once."""

import json
from pathlib import Path

import pytest

from etude.surface.cli import main

ON = ("--system", "dgx-h100")
MODEL = {"name": "mine", "hidden": 256, "heads": 4, "ffn": 1024, "vocab": 1000}


@pytest.mark.parametrize(
    "words, said",
    [
        (("predict", "llama3-8b", "--gpus", "1000000000", *ON), "--gpus: `1000000000` is more than 1,048,576"),
        (("predict", "llama3-8b", "--gpus", "8", "--seq", "1000000000000", *ON), "is more than 2,147,483,648"),
        (("predict", "llama3-8b", "--gpus", "8", "--seq", "2000000000", *ON), "more work than 64 bits count"),
        (("serve", "llama3-8b", "--rate", "1", "--count", "1000000000", *ON), "is more than 100,000,000"),
        (("predict", "layers.json", "--gpus", "8", *ON), "layers: 2,147,483,647 is more than 10,000"),
    ],
)
def test_work_without_end(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("layers.json").write_text(json.dumps(MODEL | {"layers": 2147483647}))
    assert main([*words]) == 2
    assert said in capsys.readouterr().err
