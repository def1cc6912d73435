"""Systems as keys of caches."""

from __future__ import annotations

from dataclasses import dataclass, field

from etude.machine.system import System


@dataclass(frozen=True, slots=True)
class SystemKey:
    """A system that is compared by its text."""

    text: str
    system: System = field(compare=False)

    @classmethod
    def of(cls, system: System) -> SystemKey:
        return cls(repr(system), system)
