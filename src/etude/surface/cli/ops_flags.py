"""`--ops` of `etude simulate` and `etude predict`: compute times from a database of measured operators."""

from pathlib import Path
from typing import Annotated, Any

import typer

from etude.base.errors import UsageError

OpsFile = Annotated[
    Path | None,
    typer.Option("--ops", help="Take times from a database of operators, or a profile folder; see `etude ops`."),
]
OpsBackend = Annotated[
    str, typer.Option("--ops-backend", help="Backend whose kernels are used, if the database has several.")
]


def ops_options(path: Path | None, backend: str) -> dict[str, Any]:
    """The options of a simulation with this database."""
    if path is None:
        if backend:
            raise UsageError("--ops-backend needs a database of operators", hint="--ops FILE")
        return {}
    from etude.steps.operators import open_ops

    return {"compute": "ops", "ops": open_ops(path), "backend": backend}
