"""One process of a test run that has imported PyTorch, and forks the processes of dry runs: importing it takes longer
than most of these runs.

with forked_dry_runs():
    ...                     # `DryRanks` has forks of this process instead of new ones
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

STATUS = struct.Struct("<i")


class ForkedRun:
    """As much of `subprocess.Popen` as `DryRanks` takes."""

    def __init__(self, server: socket.socket, words: list[str], env: Mapping[str, str]) -> None:
        assert words[1:3] == ["-m", "etude.capture.dry"]
        stdin, write = os.pipe()
        self._status, status = os.pipe()
        about = {"words": words[2:], "env": dict(env), "cwd": str(Path.cwd())}
        body = json.dumps(about).encode()
        socket.send_fds(server, [struct.pack("<I", len(body))], [stdin, 2, status])
        server.sendall(body)
        os.close(stdin)
        os.close(status)
        self.stdin: IO[str] = os.fdopen(write, "w")
        self.pid = self._number()
        self.returncode: int | None = None

    def _number(self) -> int:
        """The process's number, then its exit code."""
        return int(STATUS.unpack(os.read(self._status, STATUS.size))[0])

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self.returncode = self._number()
            os.close(self._status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("a dry run", timeout or 0)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


@contextmanager
def forked_dry_runs() -> Iterator[None]:
    from etude.capture.dry import launch

    ours, theirs = socket.socketpair()
    source = str(Path(launch.__file__).resolve().parents[3])
    paths = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, __file__, str(theirs.fileno())]
    server = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()

    def started(words: list[str], *, env: Mapping[str, str], **_: Any) -> ForkedRun:
        return ForkedRun(ours, words, env)

    stand_in = SimpleNamespace(
        Popen=started, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
    )  # of the module that `launch` knows, not of all of Python
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch, "subprocess", stand_in)
            yield
    finally:
        ours.close()
        server.wait()


def serve(connection: socket.socket) -> None:
    """Forks until the tests are done."""
    import gc

    import torch
    import torch._dynamo

    import etude.capture.dry.__main__ as dry

    assert torch._dynamo
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that watch
    while head := socket.recv_fds(connection, 4, 3):
        size, fds = head[0], head[1]
        if not size:
            return
        body = b""
        while len(body) < struct.unpack("<I", size)[0]:
            body += connection.recv(struct.unpack("<I", size)[0] - len(body))
        if os.fork() == 0:
            connection.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _watched(dry.main, json.loads(body), *fds)
        for fd in fds:
            os.close(fd)


def _watched(main: Any, about: dict[str, Any], stdin: int, told: int, status: int) -> None:
    child = os.fork()
    if child:
        os.close(stdin)
        os.write(status, STATUS.pack(child))
        os.write(status, STATUS.pack(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
        os._exit(0)
    code = 1
    try:
        os.dup2(stdin, 0)
        os.dup2(told, 1)
        os.dup2(told, 2)
        for fd in (stdin, told, status):
            os.close(fd)
        sys.stdin = os.fdopen(0, closefd=False)
        os.chdir(about["cwd"])
        os.environ.clear()
        os.environ.update(about["env"])
        sys.path[0], sys.argv = about["cwd"], about["words"]
        code = main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
