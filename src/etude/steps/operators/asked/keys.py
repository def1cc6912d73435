"""What is asked of the keys that models need of a database of operators: which are missing, and measuring them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, switch
from etude.base.outputs import OutputPlace, Printed
from etude.base.parameters import is_given, spelled
from etude.machine.asked import OnDevice
from etude.steps.operators.asked.databases import Database

if TYPE_CHECKING:
    from etude.machine import System
    from etude.make.generate.model import Model
    from etude.steps.operators.needs import ModelWorkload, Needs

ASKED = "What is asked for"


@dataclass(frozen=True, kw_only=True)
class KeysInput(Database):
    """Parameters of the keys of a set of models."""

    models: tuple[str, ...] = argument(
        "paths", "models: names, Hugging Face ids, YAML files, `config.json`", metavar="MODEL...", like="gpt2"
    )
    tp: tuple[int, ...] = figure("list", "tensor-parallel sizes: `1,2,4`", (1,), of=int, like="1,2", panel=ASKED)
    train: bool = switch("keys of training steps instead of serving", panel=ASKED)
    tokens: tuple[int, ...] = figure(
        "list", "tokens per prompt or sample; default: `128,512,2048,8192`", (), of=int, like="256", panel=ASKED
    )
    batch: tuple[int, ...] = figure(
        "list",
        "decoding sequences, or samples of a micro-batch; default: `1,4,16,64,256`, or 1 for training",
        (),
        of=int,
        like="2",
        panel=ASKED,
    )
    keys: tuple[int, ...] = figure(
        "list",
        "context length of each decoding sequence; default: `512,2048,8192`",
        (),
        of=int,
        like="1024",
        panel=ASKED,
    )
    stack: str = figure(
        "text", "software stack whose recipe training follows", "eager", needs="train", like="nemo", metavar="NAME"
    )
    repeats: int = figure("count", "how often each point is measured", 3, least=1, most=100, panel=ASKED)


@dataclass(frozen=True, slots=True)
class KeysWanted:
    models: "tuple[Model, ...]"
    tp: tuple[int, ...]
    workload: "ModelWorkload"
    db: Path
    device: str
    repeats: int

    @classmethod
    def of(cls, asked: KeysInput, device: str) -> "KeysWanted":
        from etude.make.generate.model import open_model
        from etude.steps.operators.needs import ModelWorkload

        base = ModelWorkload(train=True, stack=asked.stack, batch=(1,)) if asked.train else ModelWorkload()
        names = ("tokens", "batch") if asked.train else ("tokens", "batch", "keys")
        sizes: dict[str, Any] = {name: _positive(asked, name) for name in names if is_given(asked, name)}
        models = tuple(open_model(name) for name in asked.models)
        return cls(models, _positive(asked, "tp"), replace(base, **sizes), Path(asked.db), device, asked.repeats)

    def needs(self) -> "Needs":
        from etude.steps.operators.needs import needs_of
        from etude.steps.operators.opened import open_ops

        database = open_ops(self.db) if self.db.exists() else None
        return needs_of(
            self.models,
            self.tp,
            self.workload,
            _system(self.device),
            database=database.select(device=self.device) if database else None,
            repeats=self.repeats,
        )


def _positive(asked: Any, name: str) -> tuple[int, ...]:
    found: tuple[int, ...] = getattr(asked, name)
    if not all(one > 0 for one in found):
        raise UsageError(f"{spelled(asked, name)}: 0 is not a positive number", hint="1,2,4")
    return found


def _system(device: str) -> "System":
    """A system with this device. A device that is not in the catalogue has only its name."""
    from etude.machine import Device, device_names, open_device, open_system

    found = open_device(device) if device in device_names() else Device(name=device)
    return open_system("dgx-h200").replace(device=found)


@dataclass(frozen=True, kw_only=True)
class MissingKeys(KeysInput, OnDevice):
    """The keys that a database is missing for a set of models, and the time to measure them

    etude ops missing llama3-8b qwen3-8b --tp 1,2,4 --db h200.ops
    etude ops missing llama3-8b --train

    Models that share dimensions share keys: `saved` is the fraction of keys saved by this. A missing file counts as an
    empty database.
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class Measure(KeysInput):
    """Measure the keys that a database is missing for a set of models, with PyTorch on this machine

    etude ops measure llama3-8b qwen3-8b --tp 1,2 --device h200 --db h200.ops --budget 5min
    etude ops measure llama3-8b --device h200 --plan-only plan.json
    etude ops measure llama3-8b --device my-cpu --train

    The most valuable are first; Ctrl-C keeps what was measured, and the next call continues. With --plan-only nothing
    is measured here: copy plan.json and plan_worker.py to the machine with the device, run `python plan_worker.py
    plan.json -o points.csv` there (it needs only PyTorch), and `etude ops add points.csv` here.
    """

    device: str = figure(
        "text", "device: a name in the catalogue, or your own", names=("-d",), metavar="NAME", like="h100"
    )
    backend: str = figure("text", "name of the backend whose kernels are measured", "torch", like="mine", panel=ASKED)
    budget_ns: int | None = figure("time", "time limit; default: none", None, panel=ASKED)
    plan_only: str | None = figure(
        "out",
        "only write the plan (JSON), and the worker script next to it, for another machine",
        None,
        like="measure.json",
        panel="Output",
    )
    force: bool = switch("replace an existing plan", names=("-f",), needs="plan_only")
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class MeasureInputs:
    wanted: KeysWanted
    backend: str
    budget_s: float
    plan: OutputPlace | None


def measure_inputs(asked: Measure) -> MeasureInputs:
    budget_s = (asked.budget_ns or 0) / 1e9
    plan = OutputPlace.at(asked.plan_only, asked.force)
    return MeasureInputs(KeysWanted.of(asked, asked.device), asked.backend, budget_s, plan)


def measured(given: MeasureInputs) -> dict[str, Any]:
    from etude.steps.operators.measuring import has_host, measure, write_plan

    wanted = given.wanted
    plan = wanted.needs().plan(wanted.device, given.backend, budget_s=given.budget_s)
    if wanted.workload.train and not has_host(wanted.db):
        plan["points"].insert(0, {"op": "host", "dtype": "bf16"})
    if given.plan is not None:
        return write_plan(plan, given.plan)
    return measure(plan, wanted.db, given.budget_s or 1e9)
