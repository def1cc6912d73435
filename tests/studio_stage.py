"""A small run, open in a studio: two steps of a model on four ranks, simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import etude
from etude.steps.asked.runs import RunSource
from etude.tell.studio.access import StudioAccess
from etude.tell.studio.server import studio_app
from etude.tell.studio.session import StudioRun, StudioSession

PORT = 8321
TOKEN = "a-token-of-a-test"


def job_folder(folder: Path) -> Path:
    """A generated job, as a folder of Parquet files."""
    place = folder / "job"
    if not place.exists():
        made = etude.generate("gpt2", gpus=4, tp=2, seq=128, steps=2)
        etude.convert(made.job, place, to="parquet")
    return place


def session_of(*places: Path, system: str = "dgx-h100", out: Path | None = None) -> StudioSession:
    return StudioSession(tuple(StudioRun.of(RunSource(place, system)) for place in places), out)


def client(session: StudioSession, **more: Any) -> Any:
    """A client of the application, as a browser of this machine is."""
    from starlette.testclient import TestClient

    app = studio_app(session, StudioAccess(PORT, TOKEN))
    return TestClient(app, base_url=f"http://127.0.0.1:{PORT}", **more)


def asked(session: StudioSession, what: str, **given: Any) -> Any:
    found = client(session).post(f"/{TOKEN}/api/{what}", json=given)
    assert found.status_code == 200, found.text
    return found.json()
