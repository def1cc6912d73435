"""Another program as the network, over a pipe."""

import sys
from pathlib import Path

import pytest

from etude.base.errors import FormatError, UsageError
from etude.base.trust import limited
from etude.machine import open_system
from etude.machine.topology import Wire, switch
from etude.make.generate import MicroOptions, micro
from etude.model.job import Job
from etude.run.simulate import Simulated, simulate
from etude.run.simulate.networks import program
from etude.surface.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "network_program.py"
SYSTEM = open_system("dgx-h100").resized(8).replace(topology=switch(8, Wire(bytes_per_s=1e9, latency_ns=500)))


def job(what: str, size_bytes: int = 1 << 20) -> Job:
    return micro(what, MicroOptions(ranks=8, sizes=(size_bytes,), repeat=2))


def run(what: str, network: str, **more: object) -> Simulated:
    return simulate(job(what), SYSTEM, network=network, **more)


def ends(found: Simulated) -> list[list[int]]:
    return [block.tolist() for block in found.timing.end_ns]


def example(mode: str = "") -> str:
    return f"external:{sys.executable} {EXAMPLE} {mode}"


@pytest.mark.parametrize("what", ["shift:3", "all_to_all"])
def test_a_program_that_shares_links_is_flow_to_the_ns(what: str) -> None:
    direct = {"collective": {"all_to_all": "direct"}}
    assert ends(run(what, example("flow"), **direct)) == ends(run(what, "flow", **direct))


def test_a_program_with_idle_paths_takes_bytes_and_latencies() -> None:
    """A message on a link each: what flow says, too, where no two share one. Four at once on each link of an
    all-to-all: not here, where each has its links alone."""
    found = run("shift:3", example())
    assert ends(found) == ends(run("shift:3", "flow"))
    assert run("all_to_all", example()).makespan_ns < 0.5 * run("all_to_all", "flow").makespan_ns
    assert any("another program" in note for note in found.notes)


def written(folder: Path, code: str) -> str:
    path = folder / "program.py"
    path.write_text("import json, sys, time\n" + code)
    return f"external:{sys.executable} {path}"


HELLO = "sys.stdin.readline(); print(json.dumps({'network': 1}), flush=True)\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("sys.exit('no licence')", "ended with exit code 1: no licence"),
        ("print('ready', flush=True); time.sleep(9)", "answered `ready`, which is no JSON object"),
        ("print('{}', flush=True); time.sleep(9)", "did not answer"),
        ("time.sleep(30)", "has not answered for 1 s"),
        (HELLO + "sys.stdin.readline(); sys.exit(3)", "ended with exit code 3"),
        (HELLO + "sys.stdin.readline(); print('[1]', flush=True)", "answered `.1.`, which is no JSON object"),
        (HELLO + 'sys.stdin.readline(); print(\'{"now": 0.5, "arrived": []}\', flush=True)', "in whole numbers"),
        (HELLO + 'sys.stdin.readline(); print(\'{"now": 5, "arrived": [99]}\', flush=True)', "message 99"),
        (HELLO + 'sys.stdin.readline(); print(\'{"now": -5, "arrived": []}\', flush=True)', "is at -5 ns, outside"),
        (HELLO + 'sys.stdin.readline(); print(\'{"now": 0, "arrived": []}\', flush=True)', "though nothing arrives"),
    ],
)
def test_a_program_that_fails_is_an_error(
    tmp_path: Path, code: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "ANSWER_S", 1.0)
    monkeypatch.setattr(program, "END_S", 0.5)
    with pytest.raises(FormatError, match=words):
        run("shift:3", written(tmp_path, code))


def test_programs_are_code_and_read_nothing_of_links(tmp_path: Path) -> None:
    with limited(), pytest.raises(UsageError, match="runs code"):
        run("shift:3", example())
    with pytest.raises(UsageError, match="cannot be started"):
        run("shift:3", "external:/no/such/program")
    with pytest.raises(UsageError, match="another program is the network"):
        run("shift:3", example(), routing="spray")
    with pytest.raises(UsageError, match="unknown value"):
        run("shift:3", "external:")
    one = str(tmp_path / "job")
    assert main(["generate", "micro", "shift:3", "--ranks", "8", "--bytes", "1MB", "-o", one]) == 0
    assert main(["simulate", one, "--system", "dgx-h100", "--network", example("flow")]) == 0
