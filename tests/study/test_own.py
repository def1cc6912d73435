"""A user's own job, system and values in a study."""

from pathlib import Path

import pytest

from etude.base.errors import UsageError
from etude.decide.study import study
from etude.decide.study.own import OwnInputs, with_own
from etude.decide.study.run import Outcome
from etude.surface.cli.executing import executed

SYSTEM = "name: mine\ndevice: h100\nlevels: [{name: net, kind: switch, size: 16, bandwidth: 10GB/s, latency: 1us}]\n"
GIVEN = {
    "run": {
        "made": "generate llama3-8b --gpus 8 --tp {tp} -o job",
        "edited": "edit job -o zipped 'compress {ratio} when={2 * tp}' --system net-{gbit}.yaml --json",
        "ran": "simulate zipped --system net-{gbit}.yaml --json",
    },
    "files": {"net-{gbit}.yaml": {"name": "net", "bandwidth": "{gbit / 8}GB/s"}},
    "sweep": {"gbit": [50, 100]},
    "set": {"tp": 2},
    "baseline": {"name": "plain", "ratio": "ratio=1"},
    "variants": {"zip": {"ratio": "ratio=2"}},
}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    code, _, err = executed(["generate", "gpt2", "--gpus", "8", "--zero", "3", "-o", str(tmp_path / "job")])
    assert code == 0, err
    return tmp_path / "job"


def test_a_value_of_an_axis_of_the_set_and_of_the_baseline() -> None:
    used, changed = with_own(GIVEN, OwnInputs(values={"gbit": [200, 400], "tp": 4, "ratio": "ratio=1.5"}), "s.yaml")
    assert used["sweep"] == {"gbit": [200, 400]} and used["set"] == {"tp": 4}
    assert used["baseline"]["ratio"] == "ratio=1.5" and used["variants"] == GIVEN["variants"]
    assert changed == ("gbit = 200, 400", "tp = 4", "ratio = ratio=1.5 in the baseline")


def test_a_model() -> None:
    used, _ = with_own(GIVEN, OwnInputs(values={"model": "gpt2"}), "s.yaml")
    assert used["run"]["made"] == "generate gpt2 --gpus 8 --tp {tp} -o job"
    assert used["run"]["edited"] == GIVEN["run"]["edited"]


def test_the_group_that_edits_select() -> None:
    given = {**GIVEN, "run": {**GIVEN["run"], "edited": "edit job -o zipped 'compress group=dp {ratio}'"}}
    used, changed = with_own(given, OwnInputs(values={"group": "world"}), "s.yaml")
    assert used["run"]["edited"] == "edit job -o zipped 'compress group=world {ratio}'"
    assert changed == ("group world in place of dp",)


def test_a_job_takes_the_place_of_its_command(job: Path) -> None:
    given = {
        **GIVEN,
        "run": {**GIVEN["run"], "edited": "edit job -o zipped 'compress {ratio}' --system net-{gbit}.yaml"},
    }
    used, changed = with_own(given, OwnInputs(job=str(job)), "s.yaml")
    assert list(used["run"]) == ["edited", "ran"]
    assert used["run"]["edited"] == f"edit {job} -o zipped 'compress {{ratio}}' --system net-{{gbit}}.yaml"
    assert changed[1] == "without tp, which nothing needs now"


def test_a_system_takes_the_place_of_files_and_their_axis(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SYSTEM)
    used, changed = with_own(GIVEN, OwnInputs(system=str(tmp_path / "mine.yaml")), "s.yaml")
    assert used["run"]["ran"] == f"simulate zipped --system {tmp_path}/mine.yaml --json"
    assert used["files"] == {} and used["sweep"] == {}
    assert changed[-1] == "without the axis gbit, which nothing needs now"


@pytest.mark.parametrize(
    "own, problem",
    [
        (OwnInputs(values={"gbits": 1}), "no value `gbits`"),
        (OwnInputs(values={"tp": [1, 2]}), "takes one value"),
        (OwnInputs(job="/nowhere/at/all"), "no such file or folder"),
        (OwnInputs(system="dgx-h1000"), "no system `dgx-h1000`"),
    ],
)
def test_what_does_not_fit_is_refused(own: OwnInputs, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        with_own(GIVEN, own, "s.yaml")


def test_words_of_parameters_that_are_commands() -> None:
    run = {"made": "generate gpt2 --gpus 2 -o job", "proxy": "{how}"}
    given = {"run": run, "baseline": {"how": ["anonymise", "job", "-o", "x"]}, "variants": {"b": {"how": "info job"}}}
    used, _ = with_own(given, OwnInputs(job="/"), "s.yaml")
    assert used["baseline"]["how"] == ["anonymise", "/", "-o", "x"] and used["variants"]["b"]["how"] == "info /"


def ran(name: str, folder: Path, **own: object) -> Outcome:
    return study(name, quick=True, **own).outcome(out=folder / name, execute=executed)  # type: ignore[arg-type]


def test_an_entry_with_a_job_and_a_system_of_the_user(job: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SYSTEM)
    found = ran("zipccl", tmp_path, job=str(job), system=str(tmp_path / "mine.yaml"))
    assert [row["error"] for row in found.points] == ["", ""]
    answers = {check["name"]: check["ok"] for check in found.checks}
    assert answers["a single call is never slower when compressed where it pays"] is True
    assert answers["steps are shorter on slow links"] is None
    steps = {row["variant"]: row["step"] for row in found.points}
    assert steps["zip"] < steps["plain"]
    assert len(found.notes) >= 3
