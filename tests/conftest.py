import os
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data, beside the checkout or where `ETUDE_SHARED` says."""
    for place in (os.environ.get("ETUDE_SHARED"), CHECKOUT.parent / "shared"):
        if place and Path(place).is_dir():
            return Path(place)
    pytest.skip("needs the reference data folder ../shared")
