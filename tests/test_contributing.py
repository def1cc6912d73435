"""The walk-throughs of CONTRIBUTING.md, followed to the letter: files written, changes applied, commands run.

What they write goes into a folder of its own, in which modules are looked for first; the package stays as it is.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Walk-throughs")[2].partition("\n## ")[0]
WANTED = [
    "A command", "A parameter of serve", "An edit", "A collective algorithm", "A network", "A reader", "An analysis",
    "A pipeline schedule", "A system", "A policy", "A workload", "A kind of search", "A study",
]  # fmt: skip

RUN = """
import json, sys
from importlib.util import spec_from_file_location
from pathlib import Path

class Added:
    folder = Path(sys.argv[1]) / "src"

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        file = cls.folder.joinpath(*name.split(".")).with_suffix(".py")
        return spec_from_file_location(name, file) if file.is_file() else None

sys.meta_path.insert(0, Added)
from etude.surface.cli import main
for line in json.loads(sys.argv[2]):
    print("$", *line, flush=True)
    code = main(line)
    assert code == 0, (code, line)
"""


def sections() -> dict[str, list[tuple[str, str]]]:
    """Title -> (language, text) of its blocks."""
    found = {}
    for part in TEXT.split("\n### ")[1:]:
        title, _, body = part.partition("\n")
        found[title] = re.findall(r"```(\w+)\n(.*?)```", body, re.S)
    return found


def files(blocks: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(path, text) of the files that blocks are."""
    for _, text in blocks:
        named = re.match(r"# (\S+\.\w+)\n", text)
        if named:
            yield named[1], text.removeprefix(named[0])


def changed(text: str, hunk: list[str], where: str) -> str:
    """`text` with a hunk applied: its lines that are there already stand in the text once, one after another."""
    before = "".join(line[1:] + "\n" for line in hunk if not line.startswith("+"))
    after = "".join(line[1:] + "\n" for line in hunk if not line.startswith("-"))
    assert text.count(before) == 1, f"{where}: {text.count(before)} places are\n{before}"
    return text.replace(before, after)


def apply(diff: str, folder: Path) -> None:
    for part in re.split(r"^--- ", diff, flags=re.M)[1:]:
        name, _, body = part.partition("\n")
        place = folder / name
        text = place.read_text("utf-8") if place.exists() else (ROOT / name).read_text("utf-8")
        for hunk in re.split(r"^@@$\n", body, flags=re.M):
            text = changed(text, [line or " " for line in hunk.splitlines()], name)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, "utf-8")


def test_there_is_one_for_every_kind_and_each_ends_in_a_command():
    found = sections()
    assert list(found) == WANTED
    for title, blocks in found.items():
        languages = [language for language, _ in blocks]
        assert "console" in languages, title
        assert any(files(blocks)), title
        for name, text in files(blocks):
            assert len(text.splitlines()) <= 30, f"{title}: {name} is long"


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder in which all of it was done, and what the commands printed."""
    folder = tmp_path_factory.mktemp("contributing")
    (folder / "examples").symlink_to(ROOT / "examples")
    commands = []
    for blocks in sections().values():
        for name, text in files(blocks):
            assert not (ROOT / name).exists(), f"{name} is there already"
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, "utf-8")
        for language, text in blocks:
            if language == "diff":
                apply(text, folder)
            if language == "console":
                commands += [shlex.split(line)[1:] for line in text.splitlines()]
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder), json.dumps(commands)],
        cwd=folder, capture_output=True, text=True, timeout=1200,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder, done.stdout


def said(followed: tuple[Path, str], command: str) -> str:
    """What a command printed."""
    ((_, found),) = [part.split("\n", 1) for part in followed[1].split("$ ")[1:] if part.startswith(command)]
    return found


def test_all_of_them_work(followed: tuple[Path, str]):
    commands = sum(text.count("\n") for blocks in sections().values() for kind, text in blocks if kind == "console")
    assert followed[1].count("$ ") == commands
    assert json.loads(said(followed, "lanes job --json"))[0]["lanes"] >= 1
    times = [row["time_ns"] for row in json.loads(said(followed, "longest"))]
    assert times == sorted(times, reverse=True) and times[0] > 0


def test_a_kind_of_search_is_solved(followed: tuple[Path, str]):
    found = json.loads(said(followed, "search checkpoints.yaml --method greedy --json"))
    lost = {ns: 10e9 / ns + ns / 2 / 18_000e9 for ns in (int(m * 60e9) for m in (1, 2, 5, 10, 20, 60))}
    assert found["best"]["every_ns"] == min(lost, key=lost.__getitem__) == 600e9
    assert found["tried"] + found["pruned"] == found["space"] == 6


def test_what_was_added_takes_part(followed: tuple[Path, str]):
    assert len(said(followed, "serve gpt2 --system dgx-h100 --rate 1..8 --points 4").strip().splitlines()) == 1 + 4
    assert [one["rate_rps"] for one in json.loads(said(followed, "serve gpt2 --yaml"))["rates"]] == pytest.approx(
        [1, 8**0.5, 8]
    )
    assert "announce header=64B" in said(followed, "edit")
    assert "gemm" in (followed[0] / "step.oplist").read_text()
    assert said(followed, "info step.oplist").split()[:2] == ["job", "step"]
    assert said(followed, "simulate reduce --system dgx-h100 --network ideal") != said(
        followed, "simulate reduce --system dgx-h100 --collective all_reduce=star --network links"
    )
    assert "the bubble costs time" in said(followed, "study run")
    assert "Longest nodes" in (followed[0] / "longest.html").read_text("utf-8")


@pytest.mark.parametrize("name", sorted({name for b in sections().values() for name, _ in files(b) if "etude" in name}))
def test_the_code_is_as_ours_is_written(name: str):
    """Imports are where the layers have them, lines are short."""
    text = next(t for blocks in sections().values() for n, t in files(blocks) if n == name)
    compile(text, name, "exec")
    assert max(map(len, text.splitlines())) <= 120
