import subprocess
import sys

import etude

# The public surface. Adding a name here is a promise to keep it.
PUBLIC = [
    "EtudeError",
    "Job",
    "Run",
    "System",
    "Timing",
    "Trace",
    "TraceError",
    "__version__",
    "check",
    "diff",
    "edit",
    "expand",
    "feeder",
    "fold",
    "open",
    "open_feeder",
    "open_run",
    "open_system",
    "query",
    "simulate",
    "study",
    "summary",
]

HEAVY = {"numpy", "numba", "pyarrow", "duckdb", "msgspec", "torch", "ray", "typer", "rich"}


def test_the_public_names_are_these():
    assert sorted(etude.__all__) == PUBLIC
    assert dir(etude) == PUBLIC


def test_every_public_name_is_there():
    for name in PUBLIC:
        assert getattr(etude, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(etude, "nothing_of_this_name")


def test_importing_etude_is_light():
    code = "import sys, etude; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "etude" in loaded
    assert HEAVY & {name.partition(".")[0] for name in loaded} == set()
