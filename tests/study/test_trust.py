"""A study without `--trust` reads its inputs and writes its own folder, and nothing else."""

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import etude
from etude.base.errors import UsageError
from etude.base.files import writing
from etude.base.trust import limited
from etude.decide.search import search
from etude.decide.study import trust
from etude.decide.study.library import GALLERY
from etude.decide.study.points import StudyTask
from etude.decide.study.tasks import answer
from etude.surface.cli import main
from etude.surface.cli.app import _loaded
from etude.surface.cli.commands import COMMANDS
from etude.surface.cli.executing import executed
from etude.world.serve.pools.groups import function_of

CODE = "from pathlib import Path\nPath({!r}).touch()\ndef go(*a, **k): return 0\n"
READS = {
    "info", "check", "diff", "similarity", "query", "report", "timeline", "graph", "card", "archive", "convert",
    "chakra", "link", "generate", "generate micro", "generate learned", "learn", "edit", "anonymise", "predict",
    "serve", "fleet", "federate", "plan", "search", "simulate", "simulate astra", "energy", "ops", "stacks",
    "calibrate", "systems", "diagnose", "breakdown", "idle", "kernels", "collectives", "critical-path", "stragglers",
    "trend", "compare", "metrics", "score", "requests", "roofline", "memory", "world",
    "evaluate",
}  # fmt: skip
"""Commands of which no option runs a program, but for those that `trust.RUNS` names below them."""


def written(folder: Path, run: dict[str, str], **more: Any) -> Path:
    """A study file."""
    file = folder / "theirs.yaml"
    file.write_text(yaml.safe_dump({"run": run, "metrics": {"n": "1"}, **more}), "utf-8")
    return file


def refused(task: dict[str, Any]) -> str:
    """Why a task is refused; empty if it is not."""
    whole = {"key": "", "files": {}, "inputs": {}, **task}
    try:
        trust.check(StudyTask(**whole), [f"c{i}" for i in range(len(whole["commands"]))], "s.yaml")
    except UsageError as problem:
        return f"{problem.where}: {problem.problem}"
    return ""


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("collect -o x -- python -c pass", "`collect` runs a program"),
        ("replay job", "`replay` runs the operators of a job on this machine"),
        ("replay communication job", "`replay communication` runs processes on this machine"),
        ("qualify", "`qualify` runs measurements on this machine"),
        ("qualify -o x --against n.json", "`qualify` runs measurements on this machine"),
        ("ops measure gpt2", "`ops measure` runs measurements on this machine"),
        ("chakra visualizer --input_filename a", "`chakra visualizer` runs Graphviz"),
        ("mcp --root .", "`mcp` serves files of this machine"),
        ("demo", "`demo` writes a demonstration"),
        ("--debug collect", "`--debug` stands before the command"),
        ("info job -- x", "`--` passes a command on"),
        ("search space.yaml --trust", "`--trust` trusts another file"),
        ("fleet gpt2 --recover evil.py:go", "`--recover evil.py:go` runs Python code"),
        ("fleet gpt2 --recover=evil.py:go", "`--recover=evil.py:go` runs Python code, `evil.py:go`"),
        ("serve gpt2 --hook evict=/t/evil.py:go", "`--hook evict=/t/evil.py:go` runs Python code, `/t/evil.py:go`"),
        ("serve gpt2 --scale m.py:go,most=8", "`--scale m.py:go,most=8` runs Python code, `m.py:go`"),
        ("serve gpt2 --router notes.txt:go", "`--router notes.txt:go` runs Python code"),
        ("generate gpt2 -o /etc/x", "`-o /etc/x` writes outside the study's folder"),
        ("generate gpt2 --out=/etc/x", "`--out /etc/x` writes outside the study's folder"),
        ("generate gpt2 -o/etc/x", "`-o /etc/x` writes outside the study's folder"),
        ("generate gpt2 -fo /etc/x", "`-o /etc/x` writes outside the study's folder"),
        ("generate gpt2 -o ~/x", "`-o ~/x` writes outside the study's folder"),
        ("generate gpt2 -o ../x", "`-o ../x` writes outside the study's folder"),
        ("generate gpt2 -o a/../../x", "`-o a/../../x` writes outside the study's folder"),
        ("generate gpt2 -o C:\\\\x", "`-o C:\\x` writes outside the study's folder"),
        ("generate gpt2 -o notes.txt", "`-o notes.txt` writes outside the study's folder"),
        ("generate gpt2 -o data/new", "`-o data/new` writes outside the study's folder"),
        ("simulate job --timing /t.csv", "`--timing /t.csv` writes outside the study's folder"),
        ("simulate astra job --timing /t.csv", "`--timing /t.csv` writes outside the study's folder"),
        ("energy job --timeline /t", "`--timeline /t` writes outside the study's folder"),
        ("serve gpt2 --job-out /t", "`--job-out /t` writes outside the study's folder"),
        ("serve gpt2 --requests-out /t", "`--requests-out /t` writes outside the study's folder"),
        ("simulate job --link-stats /t", "`--link-stats /t` writes outside the study's folder"),
        ("anonymise job -o a --key /t", "`--key /t` writes outside the study's folder"),
        ("ops add p.csv --db /t", "`--db /t` writes outside the study's folder"),
        ("archive add job --into /t", "`--into /t` writes outside the study's folder"),
        ("chakra jsonizer --output_filename /t", "`--output_filename /t` writes outside the study's folder"),
        ("convert job /t", "`convert /t` writes outside the study's folder"),
        ("card job --write", "`card --write` writes into its input"),
    ],
)  # fmt: skip
def test_a_command_is_refused_by_name(command: str, why: str):
    inputs = {"notes.txt": "/beside/notes.txt", "data": "/beside/data"}
    assert refused({"commands": (tuple(shlex.split(command)),), "inputs": inputs}) == f"s.yaml: c0: {why}"


@pytest.mark.parametrize(
    "command",
    [
        "qualify --measured a.json --against b.json --json",
        "simulate /data/job --system dgx-h100 --timing t.csv --json",
        "report job --timing /data/t.csv -o r.html", "convert /data/run job", "generate gpt2 -o a/../job --gpus 8",
        "serve gpt2 --output 128 --router least --json", "energy gpt2 --idle -0.5", "edit job 'speed by=2' -o out",
        "query job \"select 'a.py:' || name from nodes\" --json",
    ],
)  # fmt: skip
def test_reading_and_writing_its_own_folder_is_allowed(command: str):
    assert refused({"commands": (tuple(shlex.split(command)),)}) == ""


def test_code_in_files_and_inputs_is_refused(tmp_path: Path):
    one = {"commands": (("info", "job"),)}
    assert refused({**one, "files": {"evil.py": ""}}) == "s.yaml: files: `evil.py` is code"
    assert refused({**one, "files": {"a/torch.SO": ""}}) == "s.yaml: files: `a/torch.SO` is code"
    pool = "pools: [{hook: 'evict=evil.py:go'}]"
    assert refused({**one, "files": {"p.yaml": pool}}) == "s.yaml: files: p.yaml: `evil.py:go` runs Python code"
    named = {"p.yaml": "hook: evict=data.txt:go", "data.txt": "def go(): pass"}
    assert refused({**one, "files": named}) == "s.yaml: files: p.yaml: `data.txt:go` runs Python code"
    beside = tmp_path / "p.yaml"
    beside.write_text(pool)
    assert refused({**one, "inputs": {"p.yaml": str(beside)}}) == "s.yaml: p.yaml: `evil.py:go` runs Python code"
    assert refused({**one, "files": {"p.yaml": "a: b.csv: 3"}, "inputs": {"b.csv": "/x/b.csv"}}) == ""


# -- the command -------------------------------------------------------------------------------------------------------


def test_a_study_that_runs_a_program_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    mark = tmp_path / "ran"
    collect = f"collect -o x -- python -c \"open('{mark}', 'w')\""
    file = written(tmp_path, {"first": "systems show dgx-h100 --json", "last": collect})
    out = tmp_path / "out"
    for more in ([], ["-j", "2"]):
        assert main(["study", "run", str(file), "-o", str(out), *more]) == 2
        said = capsys.readouterr().err
        assert f"error: {file}: last: `collect` runs a program\nhint: --trust" in said
    assert not mark.exists()
    assert not out.exists()


def test_python_of_a_study_runs_with_trust_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    mark = tmp_path / "ran"
    serve = "serve gpt2 --system dgx-h100 --count 2 --rate 1 --prompt 8 --output 2 --router evil.py:go --json"
    file = written(tmp_path, {"it": serve}, files={"evil.py": CODE.format(str(mark))})
    assert main(["study", "run", str(file), "-o", str(tmp_path / "out")]) == 2
    assert "`--router evil.py:go` runs Python code" in capsys.readouterr().err
    assert not mark.exists()
    with pytest.raises(UsageError, match=r"evil\.py:go"):
        etude.study(file).run()
    main(["study", "run", str(file), "-o", str(tmp_path / "out"), "--trust"])
    assert mark.exists()


def test_the_first_of_several_studies_does_not_run_if_another_is_refused(tmp_path: Path):
    good = tmp_path / "good.yaml"
    good.write_text("run: {a: systems show dgx-h100 --json}\nmetrics: {n: '1'}\n")
    bad = written(tmp_path, {"a": "generate gpt2 -o /x"})
    assert main(["study", "run", str(good), str(bad), "-o", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_tuning_and_every_variant_are_looked_at(tmp_path: Path):
    run = {"a": "generate gpt2 -o {place} --json"}
    for more in (
        {"baseline": {"place": "job"}, "variants": {"v": {"place": "/x"}}},
        {"baseline": {}, "tune": {"place": ["job", "/x"]}},
        {"sweep": {"place": ["job", "../x"]}},
    ):
        with pytest.raises(UsageError, match="writes outside the study's folder"):
            etude.study(written(tmp_path, run, **more)).run()


def test_what_words_do_not_show_is_refused_where_it_happens(tmp_path: Path):
    """The execution itself is limited, whoever looked at the words before."""
    beside, code = tmp_path / "beside", tmp_path / "code"
    beside.mkdir()
    code.write_text(CODE.format(str(tmp_path / "ran")))
    tried: list[str] = []

    def execute(words: list[str]) -> tuple[int, str, str]:
        for act in (lambda: function_of(f"{code}:go"), lambda: _put("link/x"), lambda: _put(str(beside / "x"))):
            try:
                act()
                tried.append("")
            except UsageError as problem:
                tried.append(problem.problem)
        _put("inside")
        return 0, "{}", ""

    task = {"commands": [["info"]], "files": {}, "inputs": {"link": str(beside)}}
    assert answer(task, execute)["error"] == ""
    assert tried == [f"`{code}:go` runs code", *["is outside the folder that may be written"] * 2]
    assert not list(beside.iterdir())
    tried.clear()
    answer({**task, "trusted": True}, execute)
    assert tried == ["", "", "exists already"]
    assert "ETUDE_LIMITED" not in os.environ


def _put(name: str) -> None:
    with writing(name) as path:
        path.write_text("")


def test_limits_are_never_widened_inside():
    with limited("/a"):
        with limited(), pytest.raises(UsageError, match="outside"), writing("/b"):
            pass
        assert os.environ["ETUDE_LIMITED"] == "/a"
    assert "ETUDE_LIMITED" not in os.environ


# -- the gallery -------------------------------------------------------------------------------------------------------


def test_entries_of_the_gallery_are_trusted_and_copies_are_not(tmp_path: Path):
    assert etude.study("fate").spec.trusted
    assert etude.study(GALLERY / "fate.yaml").spec.trusted
    etude.study("fate").admit()
    copy = tmp_path / "fate.yaml"
    copy.write_bytes((GALLERY / "fate.yaml").read_bytes())
    assert not etude.study(copy).spec.trusted
    with pytest.raises(UsageError, match="`--place greedy.py:place,future:0` runs Python code"):
        etude.study(copy, quick=True).admit()
    etude.study(copy, quick=True, trust=True).admit()


def test_copies_of_nearly_all_entries_run_without_trust(tmp_path: Path):
    bad = set()
    for entry in GALLERY.glob("*.yaml"):
        copy = tmp_path / entry.name
        copy.write_bytes(entry.read_bytes())
        try:
            etude.study(copy, quick=True).admit()
        except UsageError:
            bad.add(entry.stem)
    assert bad == {"autoscale-lag", "fate"}


# -- searches ----------------------------------------------------------------------------------------------------------


def test_a_search_of_commands_has_the_same_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    mark, space = tmp_path / "ran", tmp_path / "space.yaml"
    run = f"collect -o x -- python -c \"open('{mark}', 'w')\" {{flags}}"
    space.write_text(yaml.safe_dump({"search": "commands", "run": run, "axes": {"tp": [1]}, "score": {"s": "1"}}))
    assert main(["search", str(space)]) == 2
    assert "space.yaml: command: `collect` runs a program\nhint: --trust" in capsys.readouterr().err
    with pytest.raises(UsageError, match="`collect` runs a program"):
        search(space)
    assert not mark.exists()


def test_a_search_within_a_study_is_not_trusted_by_the_study(tmp_path: Path):
    inner = {"search": "commands", "run": "generate gpt2 -o /x {flags}", "axes": {"tp": [1]}, "score": {"s": "1"}}
    (tmp_path / "space.yaml").write_text(json.dumps(inner))
    file = written(tmp_path, {"it": "search space.yaml --json"})
    found = etude.study(file, trust=True).outcome(execute=executed)
    assert "`-o /x` writes outside the study's folder" in found.points[0]["error"]


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_command_is_known_to_run_something_or_not():
    assert set(COMMANDS) - set(trust.RUNS) == READS
    assert {verb for verb in trust.RUNS if verb not in COMMANDS} == {"ops measure", "chakra visualizer"}


def _options(name: str, command: Any) -> list[tuple[str, Any]]:
    found = [(name, p) for p in command.params if p.param_type_name == "option"]
    for word, below in getattr(command, "commands", {}).items():
        found += _options(f"{name} {word}", below)
    return found


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_that_writes_is_in_the_table(name: str):
    """By what its help says: a value that names a file or folder to write."""
    for verb, option in _options(name, _loaded(name)):
        said = option.help or ""
        writes = re.search(r"^Write|to write\b|^Folder for|folder to record|files go|to replace", said)
        if not writes or option.is_flag or any(verb.startswith(runs) for runs in trust.RUNS):
            continue
        if option.opts in (["--to"], ["--window"]):  # a format; a time
            continue
        known = trust.WRITES | trust.MAY_WRITE | {o for v, o in trust.WRITES_THERE if v == verb}
        assert set(option.opts) & known, (verb, option.opts, said)
