import pytest


@pytest.fixture(scope="session", autouse=True)
def dry_runs_are_forked(one_pytorch: None) -> None:
    """Of all tests here."""
