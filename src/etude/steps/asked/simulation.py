"""What commands that simulate have in common: where, the settings of the simulation, and measured operators."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import figure, part, text
from etude.base.parameters import given_in, is_given, naming, request_of, spelled
from etude.run.simulate.settings import SimulationSettings

if TYPE_CHECKING:
    from etude.machine.system import System
    from etude.run.simulate import Options

PANEL = "Simulation"
SYSTEM_HELP = "simulate there: a name of `etude systems`, or a file"


@dataclass(frozen=True, kw_only=True)
class OnSystem:
    """The parameter of what is simulated on a system."""

    system: str = figure("noun", SYSTEM_HELP, of=str, names=("-s",), like="dgx-a100", panel="Machine")


@dataclass(frozen=True, kw_only=True)
class OpsInput:
    """Parameters of compute times from a database of measured operators."""

    ops: str | None = figure(
        "path", "take times from a database of operators, or a profile folder; see `etude ops`", None, panel="Machine"
    )
    ops_backend: str = text(
        "backend whose kernels are used, if the database has several",
        needs="ops",
        like="cutlass",
        panel="Machine",
        rare=True,
    )


@dataclass(frozen=True, kw_only=True)
class Checked:
    memory_check: bool = figure("flag", "refuse plans that do not fit the memory of the device", True, panel="Machine")


@dataclass(frozen=True, kw_only=True)
class SimulationInput(OnSystem, OpsInput):
    """Parameters of what simulates a job."""

    settings: SimulationSettings = part(SimulationSettings, PANEL)


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Options of a simulation by name, and the database that compute times come from."""

    named: Mapping[str, Any]
    ops: Path | None = None
    backend: str = ""

    def by_name(self) -> dict[str, Any]:
        if self.ops is None:
            return dict(self.named)
        from etude.steps.operators import open_ops

        return {**self.named, "compute": "ops", "ops": open_ops(self.ops), "backend": self.backend}

    def whole(self) -> "Options":
        from etude.run.simulate import Options

        return Options(**self.by_name())


def options_of(asked: Any, system: "System | None" = None, **more: Any) -> SimulationOptions:
    """The options that were given to a verb with `settings`, and these besides. Those that cannot be, or that the
    network of the system does not read, are refused."""
    from etude.capture.opening import is_algorithm_file, open_algorithm
    from etude.run.simulate import Options
    from etude.run.simulate.settings import check_network, named_options

    given = given_in(asked.settings)
    if asked.ops is not None and "compute" in given:
        problem = f"{spelled(asked, 'ops')} and {spelled(asked, 'compute')} both set where times come from"
        raise UsageError(problem, hint="give one of them")
    named = named_options(given, lambda text, name: open_algorithm(text, name) if is_algorithm_file(text) else None)
    named |= more
    if system is not None:
        said = {name: value for name, value in request_of(asked).given.items() if value != "static"}
        with naming(asked, *given):
            options = Options(**named)
        check_network(options, system, said, lambda name: spelled(asked, name))
    ops = None if asked.ops is None else Path(asked.ops)
    return SimulationOptions(named, ops, asked.ops_backend if is_given(asked, "ops_backend") else "")
