"""Objects that one rank of a dry run sends to another: the only thing that ranks need of one another."""

import pickle
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0


class OtherRankError(Exception):
    """A rank needs an object of one that is not run."""

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        super().__init__(f"an object of rank {rank} is needed, which is not run")


class Post:
    """Objects that ranks send one another, as files of a folder: the k-th from one rank to another.

    A rank whose sender is not run gets what the rank that stands for it got, of a sender as far away.
    """

    def __init__(self, folder: Path, rank: int, settings: dict[str, Any], real: Any) -> None:
        self._folder, self._rank, self._real = folder, rank, real
        self._ranks: list[int] = settings["ranks"]
        self._stands: int = settings["stands"].get(str(rank), rank)
        self._sent: dict[int, int] = {}
        self._taken: dict[int | None, int] = {}

    def send(self, objects: list[Any], to: int) -> None:
        number = self._sent[to] = self._sent.get(to, 0) + 1
        file = self._folder / f"post.{self._rank}.{to}.{number}"
        with self._real():
            file.with_suffix(".part").write_bytes(pickle.dumps(objects))
        file.with_suffix(".part").rename(file)

    def take(self, objects: list[Any], sender: int | None) -> int:
        number = self._taken[sender] = self._taken.get(sender, 0) + 1
        file = self._folder / f"post.{sender}.{self._rank}.{number}"
        if sender is not None and sender not in self._ranks and not file.exists():
            file = self._folder / f"post.{sender - self._rank + self._stands}.{self._stands}.{number}"
            if not file.exists():
                raise OtherRankError(sender)
        self._wait(file, sender)
        with self._real():
            objects[:] = pickle.loads(file.read_bytes())
        return int(sender or 0)

    def _wait(self, file: Path, sender: int | None) -> None:
        """Waits until a file is there. Meanwhile another rank may start in place of this one."""
        waits, all_started = self._folder / f"waits.{self._rank}", self._folder / "all_started"
        until = time.monotonic() + PATIENCE_S
        while not file.exists():
            waits.touch()
            if not all_started.exists():
                until = time.monotonic() + PATIENCE_S
            if (self._folder / f"ended.{sender}").exists() and not file.exists():  # it may need one that is not run
                raise OtherRankError(sender)
            if time.monotonic() > until:
                raise RuntimeError(f"rank {self._rank} waits for an object of rank {sender}, which does not come")
            time.sleep(0.01)
        waits.unlink(missing_ok=True)
