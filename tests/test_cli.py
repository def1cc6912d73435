import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer

import etude.surface.cli
from etude import __version__
from etude.analyse.catalogue import command_lines
from etude.base.errors import AnswerNo, FormatError, UsageError
from etude.base.files import writing
from etude.surface.cli import COMMANDS, main
from etude.surface.cli.commands import file_of
from etude.surface.cli.output import bar, emit
from etude.surface.cli.running import run


def raising(problem: BaseException) -> typer.Typer:
    app = typer.Typer()

    @app.callback()
    def root(context: typer.Context, debug: bool = False) -> None:
        context.obj.debug = debug

    @app.command()
    def go() -> None:
        raise problem

    return app


def shell(*args: str, code: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code else ["-m", "etude"]
    return subprocess.run(
        [sys.executable, *start, *args], capture_output=True, text=True, env=os.environ | env, timeout=300
    )


# --- errors and exit codes


@pytest.mark.parametrize("option", ["--rankz", "-n"])
def test_a_misspelt_option_is_named_and_not_what_follows_it(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["idle", str(tmp_path), option, "7"]) == 2
    assert f"No such option: {option}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("problem", "code", "text"),
    [
        (FormatError("cut short", path="a.et", offset=7, hint="copy it again"), 2,
         "error: a.et: byte 7: cut short\nhint: copy it again\n"),
        (AnswerNo("they differ"), 1, "error: they differ\n"),
        (FileNotFoundError(2, "No such file or directory", "b.et"), 2, "error: b.et: No such file or directory\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
        (ZeroDivisionError("by nought"), 2,
         "error: ZeroDivisionError: by nought\n"
         "hint: this is a bug in etude; ETUDE_DEBUG=1 shows where it happened\n"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_a_line_and_a_code(
    problem: BaseException, code: int, text: str, capfd: pytest.CaptureFixture[str]
):
    assert run(raising(problem), ["go"]) == code
    assert capfd.readouterr() == ("", text)


def test_debug_shows_where(capsys: pytest.CaptureFixture[str]):
    assert run(raising(AnswerNo("they differ")), ["--debug", "go"]) == 1
    talk = capsys.readouterr().err
    assert "Traceback" in talk
    assert talk.endswith("error: they differ\n")


def test_a_command_may_return_its_exit_code():
    app = typer.Typer()
    app.callback()(lambda: None)
    app.command("no")(lambda: 1)
    app.command("yes")(lambda: None)
    assert (run(app, ["no"]), run(app, ["yes"])) == (1, 0)


@pytest.mark.parametrize("argv", [["--nope"], ["nope"]])
def test_usage_errors_are_2_and_point_to_help(argv: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(argv) == 2
    out, talk = capsys.readouterr()
    assert out == ""
    assert talk.startswith("error: No such ")
    assert talk.endswith("\nhint: etude --help\n")


def test_the_readers_going_is_no_error():
    code = (
        "import sys, typer\nfrom etude.surface.cli.running import run\n"
        "app = typer.Typer()\napp.command()(lambda: print('x' * 10**6))\nsys.exit(run(app, []))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_no_half_file(tmp_path: Path, number: signal.Signals):
    app = typer.Typer()

    @app.command()
    def go() -> None:
        with writing(tmp_path / "run.et") as path:
            path.write_text("half")
            signal.raise_signal(number)

    before = signal.getsignal(number)
    assert run(app, []) == 128 + number
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(number) == before


def test_it_runs_in_any_thread():
    app = typer.Typer()
    app.command()(lambda: 1)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(run(app, [])))
    thread.start()
    thread.join()
    assert codes == [1]


# --- help, version, completion


def test_help_teaches_and_is_light():
    code = "import sys; from etude.surface.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = shell(code=code)
    for line in ("etude info job/", "etude query out/", *COMMANDS):
        assert line in done.stdout
    heavy = {"numpy", "numba", "pyarrow", "duckdb", "msgspec", "torch", "pydantic", "markdown_it"}
    assert "typer" in done.stderr.split()
    assert heavy & {name.partition(".")[0] for name in done.stderr.split()} == set()


def test_every_command_of_the_folder_is_listed():
    folder = Path(etude.surface.cli.__file__).parent
    files = {
        path.stem
        for path in folder.glob("*.py")
        if re.search(r"\napp\.add_typer|\n@app\.command\(|\nVERBS\b", path.read_text())
    }
    assert files - {"app"} == {file_of(name) for name in COMMANDS if name not in command_lines()}


@cache
def whole() -> Any:
    """All commands; made once, since Typer reads every option of those that are loaded."""
    from etude.surface.cli.app import app

    return typer.main.get_group(app)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_as_it_is(name: str):
    _, command, _ = whole().resolve_command(typer.Context(whole()), name.split())  # loads it
    assert command is not None
    assert (command.rich_help_panel, command.help.partition("\n")[0]) == COMMANDS[name]


def test_help_and_completion_load_no_command():
    show = "; import sys; print(*sys.modules, file=sys.stderr)"
    for option in ("--help", "--version"):
        code = f"from etude.surface.cli import main; main([{option!r}])"
        loaded = shell(code=code + show).stderr.split()
        assert "etude.surface.cli.app" in loaded
        assert {f"etude.surface.cli.{file_of(name)}" for name in COMMANDS} & set(loaded) == set()


def test_a_mistyped_command_is_guessed(capsys: pytest.CaptureFixture[str]):
    assert main(["simulat"]) == 2
    assert "Did you mean 'simulate'" in capsys.readouterr().err


BELOW = {
    "archive": "add", "calibrate": "engine",
    "chakra": "jsonizer", "chakra converter": "PyTorch", "generate": "micro", "ops": "show",
    "federate": "swarm", "fleet": "train", "predict": "rows", "replay": "communication", "search": "space",
    "serve": "images", "simulate": "astra", "stacks": "show", "study": "run",
    "energy": "rows", "systems": "check", "world": "run",
}  # fmt: skip
"""Commands with others below them, and one of these."""


def test_these_commands_have_others_below_them():
    from etude.surface.cli.groups import below

    found = set()
    for name in COMMANDS:
        command = whole().resolve_command(typer.Context(whole()), name.split())[1]
        inner = getattr(command, "commands", {})
        found |= {name} if inner or below(name) else set()
        found |= {f"{name} {word}" for word, deeper in inner.items() if getattr(deeper, "commands", None)}
        found |= {f"{name} {word}" for word in below(name) if below(f"{name} {word}")}
    assert found == set(BELOW)


@pytest.mark.parametrize(("words", "inner"), BELOW.items())
def test_commands_below_a_command_behave_alike(words: str, inner: str, capsys: pytest.CaptureFixture[str]):
    assert main([*words.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert f"{words} " in out.splitlines()[1]
    assert "COMMAND ..." in out
    assert any(line.split()[1:2] == [inner] for line in out.splitlines())
    assert main([*words.split(), inner[:-1]]) == 2
    told = capsys.readouterr().err
    assert f"error: `etude {words}` has no command '{inner[:-1]}'. Did you mean '{inner}'?" in told
    assert f"known: {inner}" in told or f", {inner}" in told
    assert main([*words.split(), "--force", inner]) == 2
    assert f"hint: etude {words} {inner} --force ..." in capsys.readouterr().err


@pytest.mark.parametrize("words", ["archive", "chakra", "chakra converter", "ops", "study"])
def test_a_group_alone_gives_its_help_and_2(words: str, capsys: pytest.CaptureFixture[str]):
    assert main(words.split()) == 2
    shown = capsys.readouterr()
    assert (f"Usage: etude {words}" in shown.out, shown.err) == (True, "")


def test_a_file_with_a_name_like_a_command_is_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("astr").write_text("no job")
    assert main(["simulate", "astr", "--system", "dgx-h100"]) == 2
    assert "has no command" not in capsys.readouterr().err


def test_version():
    done = shell("--version")
    assert (done.stdout, done.stderr, done.returncode) == (f"etude {__version__}\n", "", 0)


def test_no_command_gives_help_and_2():
    done = shell()
    assert "First steps" in done.stdout
    assert done.returncode == 2


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_scripts_call_etude(name: str):
    done = shell("--show-completion", name, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert done.returncode == 0
    assert "_ETUDE_COMPLETE" in done.stdout


def test_completion_completes_options():
    done = shell(_ETUDE_COMPLETE="complete_bash", COMP_WORDS="etude --ver", COMP_CWORD="1")
    assert done.stdout.split() == ["--version"]


# --- output

ROWS = [{"name": "gemm", "ns": 1200, "hot": True}, {"name": "a|b\x1b[31m", "ns": None, "hot": False}]
TABLE = pa.table({"name": ["gemm", "a|b\x1b[31m"], "ns": pa.array([1200, None], pa.int64()), "hot": [True, False]})


@pytest.mark.parametrize("value", [ROWS, TABLE])
def test_rows_and_tables_print_alike(value: Any, capsys: pytest.CaptureFixture[str]):
    def shown(**form: Any) -> str:
        emit(value, **form)
        return capsys.readouterr().out

    assert shown() == (
        "name           ns  hot\n"
        "gemm         1200  yes\n"
        "a|b\\x1b[31m     -  no\n"
    )  # fmt: skip
    assert shown(csv=True) == "name,ns,hot\ngemm,1200,yes\na|b\\x1b[31m,,no\n"
    assert shown(md=True) == (
        "| name | ns | hot |\n"
        "| --- | ---: | --- |\n"
        "| gemm | 1200 | yes |\n"
        "| a\\|b\\x1b[31m | - | no |\n"
    )  # fmt: skip
    assert json.loads(shown(json=True)) == ROWS
    assert len(shown(json=True).splitlines()) == len(ROWS) + 2


def test_csv_has_all_digits_of_a_number(capsys: pytest.CaptureFixture[str]):
    emit([{"mean_ns": 146916127.5, "count": 6.0, "share": 0.1}], csv=True)
    assert capsys.readouterr().out == "mean_ns,count,share\n146916127.5,6,0.1\n"


def test_csv_holds_no_formula_and_numbers_stay_numbers(capsys: pytest.CaptureFixture[str]):
    texts = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "-", "-5", "a=b", "\t=1", "-inf"]
    emit([{"=name": text, "n": -1.5, "k": -7} for text in texts], csv=True)
    assert capsys.readouterr().out.splitlines() == [
        "'=name,n,k", "'=1+1,-1.5,-7", "'+cmd|' /C calc'!A0,-1.5,-7", "'-2+3,-1.5,-7", "'@SUM(A1),-1.5,-7", "-,-1.5,-7",
        "-5,-1.5,-7", "a=b,-1.5,-7", "\\t=1,-1.5,-7", "-inf,-1.5,-7",
    ]  # fmt: skip


def test_markdown_holds_no_html_and_no_link(capsys: pytest.CaptureFixture[str]):
    emit([{"<b>": "<script>alert(1)</script> & a|b [x](javascript:1) at::Tensor<float>[2](3)"}], md=True)
    assert capsys.readouterr().out.splitlines() == [
        "| &lt;b&gt; |",
        "| --- |",
        "| &lt;script&gt;alert(1)&lt;/script&gt; &amp; a\\|b [x]\\(javascript:1) at::Tensor&lt;float&gt;[2]\\(3) |",
    ]


def test_a_table_inside_a_record_is_written_row_by_row(capsys: pytest.CaptureFixture[str]) -> None:
    path = pa.table({"node": [1, 2], "name": ["a", None]})
    emit({"length_ns": 5, "path": path, "none": path.slice(0, 0)}, json=True)
    out = capsys.readouterr().out
    assert json.loads(out) == {"length_ns": 5, "path": path.to_pylist(), "none": []}
    assert '\n{"node":1,"name":"a"},\n' in out


def test_a_record_prints_as_names_and_values(capsys: pytest.CaptureFixture[str]):
    emit({"ranks": 4, "groups": ["tp", "dp"]})
    assert capsys.readouterr().out == "ranks   4\ngroups  tp, dp\n"
    emit({"ranks": 4, "ratio": float("nan"), "path": Path("a.et")}, json=True)
    assert json.loads(capsys.readouterr().out) == {"ranks": 4, "ratio": None, "path": "a.et"}


@pytest.mark.parametrize("value", [[], TABLE.slice(0, 0)])
def test_nothing_is_an_empty_list_in_json(value: Any, capsys: pytest.CaptureFixture[str]):
    emit(value, json=True)
    assert json.loads(capsys.readouterr().out) == []


def test_two_columns_of_one_name_are_both_shown(capsys: pytest.CaptureFixture[str]):
    emit(pa.table([[1], [2]], names=["n", "n"]), csv=True)
    assert capsys.readouterr().out == "n,n\n1,2\n"


def test_a_terminal_gets_a_table_without_markup(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    emit([{"name": "[red]gemm[/red]", "ns": 7}])
    shown = capsys.readouterr().out
    assert "[red]gemm[/red]" in shown
    assert "─" in shown


def shown_at(
    columns: int, value: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    emit(value)
    shown = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out)
    return [line for line in shown.splitlines() if line.strip(" ─")]


def test_a_table_wider_than_the_terminal_is_two(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Numbers and their units stay in one line, names are broken between words, the first column comes again."""
    rows = [{"rank": 3, "exposed_comm_ns": 20_320_000, "exposed_memory_ns": 2_790_000, "idle_ns": 10_110_000}]
    wide = shown_at(80, rows, monkeypatch, capsys)
    assert [line.split() for line in wide] == [
        ["rank", "exposed_comm", "exposed_memory", "idle"], ["3", "20.32", "ms", "2.79", "ms", "10.11", "ms"],
    ]  # fmt: skip
    assert [line.split() for line in shown_at(32, rows, monkeypatch, capsys)] == [
        ["exposed_", "exposed_"], ["rank", "comm", "memory"], ["3", "20.32", "ms", "2.79", "ms"],
        ["rank", "idle"], ["3", "10.11", "ms"],
    ]  # fmt: skip


def test_long_texts_are_broken_before_a_table_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    rows = [{"node": 7, "what": "the members are not known", "hint": "give a group file with the job"}]
    head, *lines = shown_at(50, rows, monkeypatch, capsys)
    assert head.split() == ["node", "what", "hint"]
    assert len(lines) > 1
    assert " ".join(" ".join(lines).split()).count("7") == 1


def test_where_people_read_times_have_units(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    rows = [{"rank": 0, "span_ns": 812_400_000, "idle_ns": None, "rate_bytes_per_ns": 7}]
    emit(rows)
    assert capsys.readouterr().out.split() == [
        "rank",
        "span",
        "idle",
        "rate_bytes_per_ns",
        "0",
        "812.4",
        "ms",
        "-",
        "7",
    ]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    emit(rows)
    head, *_, row = (line for line in capsys.readouterr().out.splitlines() if line.strip())
    assert "span" in head
    assert "span_ns" not in head
    assert "rate_bytes_per_ns" in head
    assert row.split() == ["0", "812.4", "ms", "-", "7"]
    emit({"length_ns": 90_000_000_000, "ranks": 4})
    assert capsys.readouterr().out.split() == ["length", "90", "s", "ranks", "4"]
    emit(rows, json=True)
    assert json.loads(capsys.readouterr().out) == rows


def test_a_moment_is_a_time_of_day(capsys: pytest.CaptureFixture[str]):
    """date -u -d @1794897869 is 06:44:29."""
    rows = [{"start_ns": 1_794_897_869_488_559_266, "length_ns": 1500}]
    emit(rows)
    assert capsys.readouterr().out.split() == ["start", "length", "06:44:29.488559", "1.5", "µs"]
    emit(rows, json=True)
    assert json.loads(capsys.readouterr().out) == rows


def test_in_markdown_times_have_units_and_in_csv_they_are_exact(capsys: pytest.CaptureFixture[str]):
    rows = [{"rank": 0, "span_ns": 812_400_000, "idle_ns": float("nan")}]
    emit(rows, md=True)
    assert capsys.readouterr().out.splitlines() == [
        "| rank | span | idle |", "| ---: | ---: | ---: |", "| 0 | 812.4 ms | nan |"
    ]  # fmt: skip
    emit(rows, csv=True)
    assert capsys.readouterr().out.splitlines() == ["rank,span_ns,idle_ns", "0,812400000,nan"]
    emit({"length_ns": 90_000_000_000}, md=True)
    assert capsys.readouterr().out.splitlines()[2:] == ["| length | 90 s |"]


def test_a_row_that_names_its_measure_has_its_units(capsys: pytest.CaptureFixture[str]):
    rows = [{"measure": "host_ns", "a": 1500, "delta_pct": 2.5}, {"measure": "launches", "a": 1500, "delta_pct": 2.5}]
    emit(rows)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["measure", "a", "delta_pct"], ["host", "1.5", "µs", "2.5"], ["launches", "1500", "2.5"],
    ]  # fmt: skip
    emit(rows, csv=True)
    assert "host_ns,1500,2.5" in capsys.readouterr().out


def test_one_form_at_a_time():
    with pytest.raises(UsageError, match="only one of"):
        emit([], json=True, csv=True)


@pytest.mark.parametrize("total", [3, None])
def test_progress_is_silent_off_a_terminal(total: int | None, capsys: pytest.CaptureFixture[str]):
    advance: Callable[[int], None]
    with bar("reading", total) as advance:
        advance(2)
    assert capsys.readouterr() == ("", "")
