import fcntl
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

# The same examples every time, so that a change is what makes a test fail; a random search is one setting away.
settings.register_profile("etude", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.register_profile("no-shrink", deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
settings.load_profile(os.environ.get("ETUDE_HYPOTHESIS", "etude"))

# A shell ignores Ctrl-C for what it runs in the background, and so would every test of it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Compiling makes objects by the million and keeps most: a tenth of it would go into looking for garbage.
gc.set_threshold(100_000, 20, 20)

CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data, beside the checkout or where `ETUDE_SHARED` says."""
    for place in (os.environ.get("ETUDE_SHARED"), CHECKOUT.parent / "shared"):
        if place and Path(place).is_dir():
            return Path(place)
    pytest.skip("needs the reference data folder ../shared")


@pytest.fixture(scope="session")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Runs of every kind of parallelism by so many gloo processes: a folder with one for each kind. Recorded once for
    all processes of a test run."""
    from collected import PROGRAMS, SCENARIOS, ranks

    base = tmp_path_factory.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def captured(size: int) -> Path:
        folder = common / f"ranks{size}"
        with (common / f"ranks{size}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                recording = common / f"ranks{size}.recording"
                recording.mkdir()
                ranks(size, PROGRAMS / "parallel.py", recording, *SCENARIOS)
                recording.rename(folder)
        return folder

    return captured


@pytest.fixture(scope="session")
def one_pytorch() -> Iterator[None]:
    """Dry runs are forks of one process that has imported PyTorch, which takes longer than most of them."""
    pytest.importorskip("torch")
    from dry_zygote import forked_dry_runs

    with forked_dry_runs():
        yield


EARLY = ("simulate", "serve", "store", "astra", "search", "", "docs", "collect", "ingest", "generate")
"""Folders that start first: three that mostly compile kernels of their own, so that no two processes compile the same,
then the longest."""
LONG = ("coral", "kvserve", "local-moe", "edgeserving", "faasmoe", "helm", "resihp", "fate")
"""Entries of the gallery that start before the others."""
GALLERY = "tests/study/test_gallery.py"
WAITING = "tests/collect/"
"""A folder whose tests wait for programs that they start, and compile little: its files may go to any process."""


def _turn(nodeid: str) -> tuple[int, int]:
    """When a test starts, among several processes: its folder's place, and its own in the gallery, which is last."""
    file, _, name = nodeid.partition("::")
    if file == GALLERY:
        entry = name.partition("[")[2].removesuffix("]")
        return len(EARLY) + 1, LONG.index(entry) if entry in LONG else len(LONG)
    folder = file.rpartition("/")[0].removeprefix("tests").removeprefix("/")
    return EARLY.index(folder) if folder in EARLY else len(EARLY), 0


def pytest_configure(config: pytest.Config) -> None:
    """Several processes in a new checkout: one collects the tests first, else each would translate every file and
    compile the kernels that files of tests call when they are imported."""
    several = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    if several and not (CHECKOUT / "tests" / "model" / "__pycache__").exists():
        command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-n", "0", *config.args]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _turn(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are cores (`-n auto`): some tests wait for processes that they started."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Several processes (`-n`): a folder of tests stays in one, so that its kernels are compiled once. Entries of the
    gallery, long and few, come last and one at a time, so that no process ends long before the others."""
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # in the order of the items

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if file == GALLERY:
                return nodeid
            return file if file.startswith(WAITING) else file.rpartition("/")[0]

    return ByFolder(config, log)
