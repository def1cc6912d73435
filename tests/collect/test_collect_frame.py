"""What needs no PyTorch: options, refusals, signals, the launcher around commands that never train."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from collected import ENVIRONMENT
from etude.base import seals
from etude.base.errors import UsageError
from etude.capture.collect import compiled, layout
from etude.capture.collect import torch as collect
from etude.capture.collect.manifest import started_as_rank
from etude.capture.collect.options import CollectOptions
from etude.surface.cli import main


def python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *args], env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=300
    )


def test_importing_collect_imports_no_pytorch():
    code = "import sys, etude.capture.collect.torch, etude.capture.collect.launcher; print('torch' in sys.modules)"
    assert python(code).stdout == "False\n"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"step": 3}, "collect: unknown option `step`"),
        ({"steps": 0}, "0 is not a valid number of steps"),
        ({"warmup": -1}, "-1 is not a valid number of warm-up steps"),
        ({"name": "a/b"}, "`a/b` is not a valid start"),
        ({"plan": {"x": object()}}, "the plan cannot be written as JSON"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], text: str):
    with pytest.raises(UsageError) as problem:
        collect.trace("run", **options)
    assert str(problem.value).startswith(text)


def test_without_pytorch_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"hint: pip install etude\[torch\]"), collect.trace(tmp_path):
        pass


def test_a_pytorch_that_cannot_record_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    old, profiler = ModuleType("torch"), ModuleType("torch.profiler")
    vars(old)["__version__"] = "1.9"
    monkeypatch.setitem(sys.modules, "torch", old)
    monkeypatch.setitem(sys.modules, "torch.profiler", profiler)
    with pytest.raises(UsageError, match=r"PyTorch 1\.9 has no ExecutionTraceObserver"), collect.trace(tmp_path):
        pass


def test_names_around_the_events_are_taken_out(tmp_path: Path):
    text = '{"host_name": "a\\"b", "traceEvents": [%s], "username" : "me", "traceName": "/home/me/x.json"}'
    source = tmp_path / "in.json"
    source.write_text(text % ",".join(['{"name": "host_name"}'] * 200_000))  # more than twice the edges
    layout.compress(source, tmp_path / "w.rank0.kineto.json.gz", force=False)
    import gzip

    found = json.loads(gzip.decompress((tmp_path / "w.rank0.kineto.json.gz").read_bytes()))
    assert len(found.pop("traceEvents")) == 200_000
    assert found == {"host_name": "redacted", "username": "redacted", "traceName": "w.rank0.kineto.json"}


STUCK = """
import ctypes, sys
from etude.capture.collect import signals
signals._PATIENCE_S = 0.2
watched = signals.Signals(lambda name: print("written", name, flush=True))
watched.watch()
if sys.argv[1] == "leaves":
    watched.leave()
if sys.argv[1] == "writes":
    import os, signal
    watched.hold()
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    print("wrote", flush=True)
    watched.leave()
    print("never here", flush=True)
print("ready", flush=True)
if sys.argv[1] == "sleeps":
    import time; time.sleep(30)
lock, libc = (ctypes.c_char * 128)(), ctypes.CDLL(None)
libc.pthread_mutex_lock(lock), libc.pthread_mutex_lock(lock)   # native code that no signal wakes
"""


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
@pytest.mark.parametrize(("how", "written"), [("sleeps", "written SIGTERM\n"), ("hangs", ""), ("leaves", "")])
def test_a_signal_has_its_usual_effect_in_the_end(how: str, written: str):
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, how], env=os.environ | ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)  # to be inside the native call
        process.terminate()
        assert process.stdout.read() == written
        assert process.wait(300) == -15


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_a_signal_waits_while_files_are_written():
    done = python(STUCK, "writes")
    assert (done.stdout, done.returncode) == ("wrote\n", -15)


HANDLED = """
import os, signal, sys
from etude.capture.collect import signals

def leave(number, frame):
    sys.exit(5)

signal.signal(signal.SIGTERM, leave)
watched = signals.Signals(lambda name: print("never", flush=True))
watched.watch()
watched.hold()
os.kill(os.getpid(), signal.SIGTERM)
print("wrote", flush=True)
watched.leave()
print("never here", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_a_handler_of_the_program_waits_too():
    done = python(HANDLED)
    assert (done.stdout, done.returncode) == ("wrote\n", 5)


# --- files


def test_files_get_their_names_together_and_replace_nothing(tmp_path: Path):
    hidden = layout.writing_folder(tmp_path, 7)
    for ending in (layout.HOST, layout.DEVICE, layout.MANIFEST):
        layout.path_of(hidden, "trace", "rank0", ending).write_text("new")
    assert layout.files_of_runs(tmp_path) == []
    assert layout.unfinished(tmp_path) == {7: 9}
    (tmp_path / "trace.rank0.kineto.json.gz").write_text("old")
    with pytest.raises(UsageError, match="exists already"):
        layout.publish(tmp_path, 7, force=False)
    assert [path.name for _, path in layout.files_of_runs(tmp_path)] == ["trace.rank0.kineto.json.gz"]
    layout.publish(tmp_path, 7, force=True)
    assert [path.read_text() for _, path in layout.files_of_runs(tmp_path)] == ["new"] * 3
    assert not hidden.exists()


# --- the launcher


def test_a_command_that_does_not_train(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import os; os.environ['SITE'] = 'mine'")
    code = "import os, sys; print(os.environ['SITE'], any('bootstrap' in p for p in sys.path)); sys.exit(5)"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        assert main(["collect", "-o", str(tmp_path / "run"), "--", sys.executable, "-c", code]) == 5
    out, talk = capfd.readouterr()
    assert out == "mine False\n"
    assert talk.startswith("etude collect: nothing was recorded: ")


CUT_OFF = """
import json, os, signal
from pathlib import Path
from etude.capture.collect import layout
folder = layout.writing_folder(Path(json.loads(os.environ["ETUDE_COLLECT"])["folder"]), os.getpid())
(folder / "trace.rank0.et.json.gz").write_bytes(bytes(4_000_000))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="POSIX signals")
def test_a_process_that_was_killed_while_it_wrote_is_named_and_leaves_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    assert main(["collect", "-o", str(tmp_path / "run"), "--", sys.executable, "-c", CUT_OFF]) == 128 + 9
    said = capfd.readouterr().err
    assert "ended while it wrote its recording: 4 MB were written, and are removed: they are not complete" in said
    assert "nothing was recorded" not in said
    assert list((tmp_path / "run").iterdir()) == []


def test_a_signal_is_passed_on_as_a_shell_would(tmp_path: Path):
    code = "import os; os.kill(os.getpid(), 9)"
    assert main(["collect", "-o", str(tmp_path / "run"), "--", sys.executable, "-c", code]) == 137


def test_what_cannot_be_run_or_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["collect", "-o", str(tmp_path / "run"), "--", "no-such-command-at-all"]) == 2
    assert "no-such-command-at-all: command not found" in capsys.readouterr().err
    (tmp_path / "trace.rank3.et.json.gz").write_bytes(b"")
    assert main(["collect", "-o", str(tmp_path), "--", sys.executable, "-c", "print(1)"]) == 2
    assert "already contains a run (`trace.rank3.et.json.gz`)" in capsys.readouterr().err
    assert main(["collect", "-f", "-o", str(tmp_path), "--", sys.executable, "-c", "pass"]) == 0
    assert not (tmp_path / "trace.rank3.et.json.gz").exists()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--setps", "3", "--", "true"], "--steps"),
        (["--whole", "--steps", "3", "--", "true"], "--steps is not read with --whole"),
        (["--whole", "--warmup", "3", "--", "true"], "--warmup is not read with --whole"),
        (["-x", "--", "true"], "-x"),
        ([], "COMMAND is missing"),
        (["true", "-o", "x", "--force"], "--out is missing"),
    ],
)
def test_options_before_the_command_are_ours_and_those_behind_it_are_not(
    tmp_path: Path, asked: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    place = [] if "-o" in asked else ["-o", str(tmp_path / "run")]
    assert main(["collect", *place, *asked]) == 2
    assert said in capsys.readouterr().err


def test_a_command_needs_no_dashes(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    code = "import sys; print(sys.argv[1:])"
    assert main(["collect", "-o", str(tmp_path / "run"), sys.executable, "-c", code, "--steps", "-f", "--", "x"]) == 0
    assert capfd.readouterr().out == "['--steps', '-f', '--', 'x']\n"


def test_options_survive_the_way_to_the_worker():
    options = CollectOptions(steps=3, warmup=1, plan={"tp": 2}, memory=True)
    assert CollectOptions.from_dict(options.to_dict()) == options


# --- who is which rank


def manifest_of(pid: int, folder: Path, who: str) -> dict[str, object]:
    file = folder / f"trace.{who}.kineto.json.gz"
    file.write_text(str(pid))
    process = None if who.startswith("rank") else {"name": f"worker-{pid}", "pid": pid}
    about = {"name": "trace", "rank": None if process else 0, "process": process, "files": {"device": file.name}}
    (folder / f"trace.{who}.manifest.json").write_text(json.dumps(about))
    return about


def test_a_rank_that_torch_distributed_knows_comes_before_one_by_environment(tmp_path: Path):
    assert layout.claim(tmp_path, 0, 11, sure=False)
    manifest_of(11, tmp_path, "rank0")
    assert not layout.claim(tmp_path, 0, 12, sure=False)
    assert layout.claim(tmp_path, 0, 13, sure=True)
    assert layout.manifests(tmp_path) == []
    assert [(m["process"]["pid"], m["files"]) for m in layout.beside(tmp_path)] == [
        (11, {"device": "trace.process11.kineto.json.gz"})
    ]
    assert (tmp_path / "trace.process11.kineto.json.gz").read_text() == "11"
    assert not layout.claim(tmp_path, 0, 14, sure=True)


def test_a_process_that_is_all_there_is_makes_the_job(tmp_path: Path):
    layout.promote(tmp_path, manifest_of(21, tmp_path, "process21"))
    assert [(m["rank"], m["process"], m["files"]) for m in layout.manifests(tmp_path)] == [
        (0, None, {"device": "trace.rank0.kineto.json.gz"})
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "trace.rank0.kineto.json.gz", "trace.rank0.manifest.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "rank", "is_rank"),
    [
        ("", "", True),  # by itself
        ("", "3", True),  # by torchrun
        ("1:", "3", True),  # by a Python program that sets RANK
        ("1:", "", False),  # by a Python program that does not: a worker of a data loader
        ("1:3", "3", False),  # the same in a rank
        ("PID:3", "3", True),  # the rank itself
    ],
)
def test_who_is_a_rank(first: str, rank: str, is_rank: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ETUDE_COLLECT_FIRST", first.replace("PID", str(os.getpid())))
    monkeypatch.setenv("RANK", rank)
    assert started_as_rank() is is_rank


def test_code_of_compiled_graphs_goes_without_what_names_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    class CompiledFxGraph:
        _fx_graph_cache_key = "fkey"
        source_code = "# File: /home/me/model.py:3 in forward, code: secret(x)\nimport torch\n    #pragma omp simd\n"

    made = ModuleType("torch._inductor.output_code")
    made.CompiledFxGraph = CompiledFxGraph
    monkeypatch.setitem(sys.modules, "torch._inductor.output_code", made)
    graph = CompiledFxGraph()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    code = "import torch\n    #pragma omp simd\n"
    kept = compiled.sources()
    assert set(kept) == {"fkey"} and kept["fkey"]["code"] == code
    assert seals.made_here(code, kept["fkey"]["seal"]) and not seals.made_here(code + " ", kept["fkey"]["seal"])
    assert (tmp_path / "etude" / "seal.key").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert not seals.made_here(code, kept["fkey"]["seal"])
    del graph
    monkeypatch.delitem(sys.modules, "torch._inductor.output_code")
    assert compiled.sources() == {}
