"""Functions of `etude`: what they refuse, and that a command and its function give the same."""

import inspect
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.base.errors import EtudeError, UsageError
from etude.surface.cli import main

CLIENTS = Path(__file__).resolve().parent.parent / "examples" / "clients.csv"
UNKNOWN: dict[str, Callable[[], Any]] = {
    # 70 billion parameters do not fit either: the name that means nothing comes first
    "predict": lambda: etude.predict("llama3-70b", "dgx-h100", gpus=8, nonsense=1),
    "predict, a plan": lambda: etude.predict("llama3-70b", "dgx-h100", etude.Plan(gpus=8), nonsense=1),
    "generate": lambda: etude.generate("gpt2", nonsense=1),
    "generate, a plan": lambda: etude.generate("gpt2", etude.Plan(), nonsense=1),
    "micro": lambda: etude.extend.micro("all_reduce", ranks=2, nonsense=1),
    "serve": lambda: etude.serve("gpt2", "dgx-h100", rate_per_s=1, nonsense=1),
    "fleet": lambda: etude.fleet("gpt2", "dgx-h100", gpus=8, nonsense=1),
    "fleet, a plan": lambda: etude.fleet("gpt2", "dgx-h100", etude.Plan(gpus=8), nonsense=1),
    "federate": lambda: etude.extend.federate("gpt2", CLIENTS, nonsense=1),
    "synthesise": lambda: etude.extend.synthesise(None, nonsense=1),
    "replay": lambda: etude.replay(etude.extend.micro("all_reduce", ranks=2), nonsense=1),
    "search": lambda: etude.search("space.yaml", nonsense=1),
    "plan": lambda: etude.plan("gpt2", "dgx-h100", nonsense=1),
    "collect": lambda: etude.collect(["true"], "run/", nonsense=1),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_name_that_means_nothing_is_refused_before_all_else(name: str):
    with pytest.raises(UsageError, match="nonsense") as problem:
        UNKNOWN[name]()
    assert "known: " in problem.value.hint


def test_what_was_hidden_is_not_printed():
    copy, hidden = etude.anonymise(etude.generate("gpt2", gpus=1, seq=64).job, keep_shapes=True)
    assert copy.name == "anonymous"
    assert "aten" in str(hidden.tokens)
    assert repr(hidden).startswith("Hidden(")
    assert "aten" not in repr(hidden)


# --- a command and its function

SAMPLE = Path(etude.__file__).parent / "capture" / "sample" / "gpt.rank0.kineto.json.gz"


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What a command prints as JSON."""
    capsys.readouterr()
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def files_in(folder: Path) -> dict[str, bytes]:
    paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--replicas 2 --router tokens --slo ttft=1s,tpot=50ms", {"replicas": 2, "router": "tokens"}),
        ("--max-num-seqs 2 --kv-dtype fp8", {"max_num_seqs": 2, "kv_dtype": "fp8"}),
        ("--disaggregate 1:1 --kv-codec fp8", {"disaggregate": "1:1", "kv_codec": "fp8"}),
    ],
)
def test_serve_answers_as_its_command(words: str, options: dict[str, Any], capsys: pytest.CaptureFixture[str]):
    drawn = "--rate 8 --count 12 --prompt 96 --output 8 --seed 3"
    told = asked(capsys, "serve", "gpt2", "--system", "dgx-h100", *drawn.split(), *words.split())
    found = etude.serve("gpt2", "dgx-h100", rate_per_s=8, count=12, prompt=96, output=8, seed=3, **options)
    summary = found.summary("ttft=1s,tpot=50ms" if "--slo" in words else "")
    assert json.loads(json.dumps(summary)) == {name: told[name] for name in summary}
    assert len(found.table()) == 12


@pytest.mark.parametrize(
    ("file", "words", "options"),
    [
        ("edge.yaml", "--policy stability", {"policy": "stability"}),
        ("backbone.yaml", "", {}),
        ("airan.yaml", "--load 0.8", {"load": 0.8}),
        (
            "cluster.yaml",
            "--policy fair --first 20",
            {"policy": "fair", "first": 20, "jobs": CLIENTS.parent / "jobs.csv"},
        ),
    ],
)
def test_a_file_of_what_shares_devices_runs_as_its_command(
    file: str, words: str, options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = str(CLIENTS.parent / file)
    jobs = ["--jobs", str(options["jobs"])] if "jobs" in options else []
    told = asked(capsys, "fleet", path, *jobs, *words.split(), "-o", str(tmp_path / "command"))
    found = etude.fleet(path, **options)
    assert repr(found).startswith("SharedFleet(")
    record = json.loads(json.dumps(found.record()))
    assert record == {name: told[name] for name in record} | ({"jobs": record["jobs"]} if "jobs" in record else {})
    found.write(tmp_path / "python")
    assert files_in(tmp_path / "python") == files_in(tmp_path / "command")


def test_workflows_run_as_their_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    flood = str(CLIENTS.parent / "workflows" / "flood.yaml")
    words = ["serve", "--workflow", flood, "--choose", "pixie", "--slo", "latency=2s,cost=0.01,label=0.85"]
    shown = asked(capsys, *words, "-o", str(tmp_path / "command"))
    found = etude.extend.serve_workflow(flood, choose="pixie", slo="latency=2s,cost=0.01,label=0.85")
    summary = json.loads(json.dumps(found.summary()))
    assert summary == {name: shown[name] for name in summary}
    assert repr(found).startswith("Sessions(")
    found.write(tmp_path / "python")
    assert files_in(tmp_path / "python") == files_in(tmp_path / "command")
    report, devices = (str(CLIENTS.parent / "workflows" / name) for name in ("dags/report.yaml", "mixed.yaml"))
    shown = asked(capsys, "serve", "--workflow", report, "--devices", devices, "--place", "heft")
    rows = etude.extend.place_workflows(report, devices, ["heft"])
    assert [row["place"] for row in rows] == ["roundrobin", "heft"]
    assert json.loads(json.dumps(rows[1])) == shown["places"]["heft"]


def test_a_file_of_what_shares_devices_refuses_what_is_for_a_model():
    with pytest.raises(UsageError, match="days"):
        etude.fleet(CLIENTS.parent / "edge.yaml", days=3)
    with pytest.raises(UsageError, match="no system is given"):
        etude.fleet("gpt2", gpus=8)


def test_fleet_runs_as_its_command(capsys: pytest.CaptureFixture[str]):
    """The plan as given does not fit 80 GB: both take it with ZeRO 1."""
    words = (
        "--gpus 16 --system dgx-h100 --days 2 --faults llama3 --checkpoint remote:1h --seed 5 --spares 1 --exclude 1"
    )
    told = asked(capsys, "fleet", "llama3-8b", *words.split())
    found = etude.fleet(
        "llama3-8b", "dgx-h100", gpus=16, days=2, faults="llama3", checkpoint="remote:1h", seed=5, spares=1, exclude="1"
    )
    record = json.loads(json.dumps(found.record(name="llama3-8b")))
    assert record == {name: told[name] for name in record}
    with pytest.raises(UsageError, match="0 days is not a valid length"):
        etude.fleet("llama3-8b", "dgx-h100", gpus=16, days=0)


def test_generate_refuses_and_reads_ids_as_its_command(capsys: pytest.CaptureFixture[str]):
    for memory in ("1GB", 1_000_000_000):
        with pytest.raises(UsageError, match="does not fit"):
            etude.generate("gpt2", gpus=2, memory=memory)
    assert main(["generate", "gpt2", "--gpus", "2", "--memory", "1GB"]) == 2
    assert "does not fit" in capsys.readouterr().err
    assert str(etude.generate("Qwen/Qwen3-0.6B-FP8", gpus=1, seq=64).plan.precision) == "fp8"  # as the id says


@pytest.mark.parametrize(
    ("out", "options"),
    [
        ("et", {"to": "et", "compress": "gz", "dialect": "astra", "name": "x"}),
        ("json", {"to": "json"}),
        ("parquet", {"to": "parquet"}),
        ("astra", {"to": "astra", "system": "dgx-h100"}),
        ("flows.csv", {"to": "flows", "system": "dgx-h100"}),
        ("simai.txt", {"to": "simai", "system": "dgx-h100"}),
    ],
)
def test_convert_writes_as_its_command(out: str, options: dict[str, str], tmp_path: Path):
    etude.convert(etude.generate("gpt2", gpus=2, seq=64).job, tmp_path / "job")
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    assert main(["convert", str(tmp_path / "job"), str(tmp_path / f"a.{out}"), *words]) == 0
    written = etude.convert(tmp_path / "job", tmp_path / f"b.{out}", **options)  # type: ignore[arg-type]
    assert Path(written) == written.place
    assert files_in(tmp_path / f"a.{out}") == files_in(tmp_path / f"b.{out}")


def test_convert_refuses_as_its_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    job = etude.extend.micro("all_reduce", ranks=2)
    place = etude.convert(job, tmp_path / "job")
    (tmp_path / "job" / "mine.py").write_text("")
    for options in ({"to": "astra"}, {"to": "parquet", "dialect": "astra"}, {"force": True}):
        with pytest.raises(UsageError) as problem:
            etude.convert(job, place, **options)  # type: ignore[arg-type]
        words = [
            w for name, value in options.items() for w in ([f"--{name}"] if value is True else [f"--{name}", value])
        ]
        assert main(["convert", str(tmp_path / "job"), str(place.place), *words]) == 2
        assert problem.value.problem in re.sub(r"--(dialect|to)\b(?! astra)", r"`\1`", capsys.readouterr().err)


def test_link_links_as_its_command(tmp_path: Path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "rank0.json.gz").write_bytes(SAMPLE.read_bytes())
    assert main(["link", str(SAMPLE), "-o", str(tmp_path / "one.et")]) == 0
    assert main(["link", str(run), "-o", str(tmp_path / "all")]) == 0
    one = etude.convert(etude.link(SAMPLE), tmp_path / "one", to="et", name="one")
    both = etude.convert(etude.link(run, any_window=True, max_bytes="1GiB"), tmp_path / "both", to="et")
    assert (one.place / "one.0.et").read_bytes() == (tmp_path / "one.et").read_bytes()
    assert (both.place / "run.0.et").read_bytes() == (tmp_path / "all" / "run.0.et").read_bytes()
    with pytest.raises(etude.EtudeError):
        etude.link(run, max_bytes="1KiB")


def test_report_writes_as_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "gpt2", "--system", "dgx-h100", "--rate", "4", "--count", "5", "-o", "served"]) == 0
    for what, words in ((SAMPLE, [str(SAMPLE)]), ([SAMPLE, SAMPLE], [str(SAMPLE)] * 2), ("served", ["served"])):
        assert main(["report", *words, "-o", "a.html", "--force"]) == 0
        verdict = etude.report(what, "b.html", force=True)  # type: ignore[arg-type]
        assert Path("a.html").read_bytes() == Path("b.html").read_bytes()
        assert verdict.endswith(".")
    with pytest.raises(UsageError, match="no times"):
        etude.report(etude.extend.micro("all_reduce", ranks=2), "c.html")


def test_simulate_takes_a_name_with_room_for_the_ranks():
    job = etude.extend.micro("all_reduce", ranks=1040)  # more than the 1,024 devices that the catalogue has
    run = etude.simulate(job, "dgx-h100")
    assert run.makespan_ns == etude.simulate(job, etude.open_system("dgx-h100").for_ranks(1040)).makespan_ns


# --- what is taken for a run or a job


def nouns_taken(name: str) -> list[str]:
    """Parameters of a public verb that are a run, a job, a system or a device."""
    home = etude if name in etude.__all__ else etude.extend
    verb = getattr(home, name)
    wanted = ("Run", "Job", "System", "Device")
    return [
        p.name
        for p in (inspect.signature(verb).parameters.values() if callable(verb) and not inspect.isclass(verb) else ())
        if set(str(p.annotation).split(" | ")) & set(wanted)
    ]


VERBS = {name: taken for name in (*etude.__all__, *etude.extend.__all__) if (taken := nouns_taken(name))}


def test_verbs_that_take_a_noun_are_found():
    assert {"breakdown", "compare", "simulate", "check", "query", "edit", "timeline", "fold", "reasons"} <= set(VERBS)
    assert len(VERBS) > 30


@pytest.mark.parametrize("name", VERBS)
def test_what_is_no_run_and_no_job_is_refused_with_a_hint(name: str):
    verb = getattr(etude if name in etude.__all__ else etude.extend, name)
    needed = [p.name for p in inspect.signature(verb).parameters.values() if p.default is p.empty and p.kind < 2]
    for wrong in (3, etude.generate("gpt2", gpus=1, seq=64).job.trace(0)):
        given = {parameter: wrong if parameter in VERBS[name] else "x" for parameter in needed}
        given |= dict.fromkeys(VERBS[name], wrong)
        if name == "feeder" and wrong != 3:  # which takes a trace as well
            continue
        with pytest.raises(EtudeError) as problem:
            verb(**given)
        assert problem.value.hint, problem.value


def test_a_path_a_job_or_what_was_made_is_taken_for_a_run():
    run = etude.open_run(SAMPLE)
    wanted = etude.breakdown(run)
    for given in (str(SAMPLE), SAMPLE, run.job):
        assert etude.breakdown(given).equals(wanted)
    assert etude.compare(SAMPLE, run.job).equals(etude.compare(run, run))
    assert etude.roofline(SAMPLE, "h100").equals(etude.roofline(run, etude.open_system("h100").device))
    assert etude.diff(SAMPLE, run) is None
    assert etude.query(str(SAMPLE), "select count(*) as n from nodes")["n"].to_pylist() == [run.job.nodes]
    assert [str(f) for f in etude.check(SAMPLE)] == [str(f) for f in etude.check(run.job)]
    with pytest.raises(EtudeError, match="no times were recorded") as problem:
        etude.breakdown(etude.generate("gpt2", gpus=1, seq=64))
    assert "etude.simulate" in problem.value.hint
    with pytest.raises(EtudeError):
        etude.breakdown("no/such/run")


def test_what_was_generated_is_taken_for_a_job():
    made = etude.generate("gpt2", gpus=2, seq=64)
    run = etude.simulate(made, "dgx-h100")
    assert run.makespan_ns == etude.simulate(made.job, etude.open_system("dgx-h100").for_ranks(2)).makespan_ns
    assert etude.query(made, "select count(*) as n from nodes")["n"].to_pylist() == [made.job.nodes]
    assert etude.breakdown(etude.predict("gpt2", "dgx-h100", gpus=2, seq=64)).num_rows == 2
    engine, _ = etude.extend.start_engine(made, "dgx-h100")
    assert not engine.advance(run.makespan_ns)


def test_a_verb_can_be_pickled():
    assert pickle.loads(pickle.dumps(etude.breakdown)) is etude.breakdown


@pytest.mark.parametrize(
    "ask, told",
    [
        (lambda run: etude.simulate(run.job, run.system, seed=3), "`seed` is read only with `jitter`"),
        (lambda run: etude.simulate(run.job, run.system, scale=0.5), "`scale` is read only with `compute` scaled"),
        (lambda run: etude.simulate(run.job, run.system, jiter={}), "`etude.simulate`: unknown parameter `jiter`"),
        (lambda run: etude.predict("gpt2", "dgx-h100", gpus=2, seed=3), "`seed` is read only with `jitter`"),
        (lambda run: etude.predict("gpt2", "dgx-h100", gpus=2, backend="x"), "`backend` is read only with `ops`"),
        (lambda run: etude.predict("gpt2", "dgx-h100", gpu=2), "did you mean `gpus`?"),
        (lambda run: etude.breakdown(run, countng=None), "did you mean `counting`?"),
        (lambda run: etude.stragglers(run, leest=0.1), "`etude.stragglers`: unknown parameter `leest`"),
        (lambda run: etude.compare(run, run, operator=True), "did you mean `operators`?"),
        (lambda run: etude.idle(run, launches=True), "`etude.idle`: unknown parameter `launches`"),
    ],
)
def test_what_python_gives_and_nothing_reads_is_refused(ask: Any, told: str) -> None:
    run = etude.simulate(etude.generate("gpt2", gpus=2).job, "dgx-h100")
    with pytest.raises(EtudeError, match=re.escape(told)):
        ask(run)
