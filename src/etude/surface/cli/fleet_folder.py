"""`etude fleet FILE.yaml`: what shares its devices, simulated, written and shown, each kind in its own way."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.surface.cli.output import say

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.surface.api.fleets import SharedFleet


def shared(
    path: str, load: str, out: Path | None, *, force: bool, json: bool, **options: Any
) -> int:  # fmt: skip
    """Options are those of `shared_fleet`."""
    from etude.surface.api.fleets import kind_of, loads_of, shared_fleet

    if options["jobs"] is not None:
        load = ""
    elif load and kind_of(path) == "radio":
        loads = loads_of(load)
        if len(loads) > 1:
            from etude.surface.cli.fleet_radio import show_loads

            if out is not None:
                raise UsageError("-o needs a single load", where=path, hint="--load 1.0")
            show_loads([shared_fleet(path, load=one, **options) for one in loads], json=json)
            return 0
    found = shared_fleet(path, load=loads_of(load)[0], **options)
    for note in found.notes:
        say(f"note: {note}")
    folder(out, found.tables, found.figures, found.asked, force=force)
    _shown_by(found)(found, json=json)
    return 0


def _shown_by(found: "SharedFleet") -> Callable[..., None]:
    from etude.surface.cli.fleet_functions import show_functions
    from etude.surface.cli.fleet_radio import show_radio
    from etude.surface.cli.fleet_rl import show_mixed, show_post_trained
    from etude.surface.cli.fleet_services import show_backbone, show_services
    from etude.surface.cli.fleet_sharing import show_jobs

    kinds = {
        "jobs": show_jobs, "rl": show_post_trained, "services": show_services, "backbone": show_backbone,
        "functions": show_functions, "radio": show_radio,
    }  # fmt: skip
    return kinds.get(found.kind, show_mixed)


def folder(
    out: Path | None, tables: "dict[str, pa.Table]", record: dict[str, Any], asked: dict[str, Any], *, force: bool
) -> None:  # fmt: skip
    """Written where one is asked for."""
    from etude.world.fleet import write_fleet

    if out is None:
        return
    write_fleet(tables, record | {"asked": asked}, out, force=force)
    say(f"wrote {out}")
