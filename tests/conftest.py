"""Fixtures that many tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference files, `../shared` beside the checkout or `$ETUDE_SHARED`; too large to be kept in it."""
    beside = [up / "shared" for up in Path(__file__).resolve().parents[2:5]]
    for folder in [Path(os.environ["ETUDE_SHARED"])] if "ETUDE_SHARED" in os.environ else beside:
        if (folder / "oracle").is_dir():
            return folder
    pytest.skip("no folder of reference files: set ETUDE_SHARED")
