"""Another program as the network, over a pipe: a line of JSON each way.

    to it    {"network": 1, "vertices": [name, ...], "ranks": [vertex, ...],
              "links": [[from, to, bytes_per_s, latency_ns], ...]}
    from it  {"network": 1}
    to it    {"post": [[message, at_ns, from, to, bytes, [link, ...]], ...], "advance": until_ns}
    from it  {"now": now_ns, "arrived": [message, ...]}
    to it    {"end": true}

`post` are messages that begin, with the links that Etude would take. The program goes on to `until_ns`, or to the first
instant at which messages arrive, if that is earlier, and says which. `until_ns` is null where nothing else can happen.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import subprocess
import tempfile
from typing import IO, Any, Final, cast

import numpy as np

from etude.base.errors import FormatError, UsageError
from etude.base.trust import check_code
from etude.base.units import counted
from etude.machine.topology import Topology
from etude.run.simulate.networks.external import arrive
from etude.run.simulate.networks.state import NEVER, LinkState

VERSION: Final = 1
ANSWER_S: Final = 60.0
"""How long an answer may take."""
END_S: Final = 5.0
SHOWN: Final = 200
HINT: Final = "its protocol is in docs/network.md, an example in examples/network_program.py"


class NetworkProgram:
    """A program that was started, and what is on its way in it."""

    def __init__(self, command: str, topology: Topology) -> None:
        check_code(command)
        self.command, self.topology = command, topology
        self.now_ns, self.count, self.moving, self.rest = 0, 0, dict[int, int](), b""
        self.said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the program
        try:
            self.process = subprocess.Popen(
                shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said
            )
        except (OSError, ValueError) as problem:
            raise UsageError(f"network program `{command}` cannot be started: {problem}", hint=HINT) from None
        names = [topology.vertex_name(vertex) for vertex in range(len(topology.kind))]
        ends = zip(topology.src.tolist(), topology.dst.tolist(), topology.bytes_per_s.tolist(), strict=True)
        links = [[*end, latency] for end, latency in zip(ends, topology.latency_ns.tolist(), strict=True)]
        about = {"network": VERSION, "vertices": names, "ranks": topology.device.tolist(), "links": links}
        if self._ask(about).get("network") != VERSION:
            raise self._wrong(f'did not answer {{"network": {VERSION}}}')

    def is_asked(self, state: LinkState) -> bool:
        return state.outside is not None and bool(state.outside.clock[0]["asks"])

    def exchange(self, state: LinkState) -> None:
        """Posts what began, and asks what arrives next."""
        if state.outside is None:
            return
        clock = state.outside.clock[0]
        posted = int(clock["posted"])
        slots, at_ns = state.outside.slot[:posted].tolist(), state.outside.at_ns[:posted].tolist()
        until_ns = None if clock["limit_ns"] == NEVER else int(clock["limit_ns"])
        post = [self._message(state, slot, at) for slot, at in zip(slots, at_ns, strict=True)]
        answer = self._ask({"post": post, "advance": until_ns})
        now_ns, arrived = answer.get("now"), answer.get("arrived")
        if type(now_ns) is not int or not isinstance(arrived, list) or not all(type(one) is int for one in arrived):
            raise self._wrong(f"answered {_cut(json.dumps(answer))}, without `now` and `arrived` in whole numbers")
        if now_ns < self.now_ns or (until_ns is not None and now_ns > until_ns):
            raise self._wrong(f"is at {now_ns:,} ns, outside of {self.now_ns:,} to {until_ns} ns")
        if not arrived and now_ns != until_ns:
            left = counted(len(self.moving), "message")
            raise self._wrong(f"stopped at {now_ns:,} ns though nothing arrives, and {left} have not")
        if unknown := [one for one in arrived if one not in self.moving]:
            raise self._wrong(f"says that message {unknown[0]} has arrived, which is not on its way")
        arrive(state, np.array([self.moving.pop(one) for one in arrived], np.int64), now_ns)
        self.now_ns = now_ns
        clock["known_ns"], clock["posted"], clock["asks"] = now_ns, 0, 0
        clock["moving"] -= len(arrived)

    def _message(self, state: LinkState, slot: int, at_ns: int) -> list[Any]:
        p, path = state.paths, int(state.slots[slot]["path"])
        links = p.link[p.start[path] : p.start[path + 1]].tolist()
        ends = int(self.topology.src[links[0]]), int(self.topology.dst[links[-1]])
        self.count += 1
        self.moving[self.count] = slot
        return [self.count, at_ns, *ends, float(state.slots[slot]["wire_bytes"]), links]

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            self._write(json.dumps(asked).encode() + b"\n")
        except OSError:
            raise self._wrong(self._end()) from None
        line = self._line()
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._wrong(f"answered `{_cut(line.decode(errors='replace').strip())}`, which is no JSON object")
        return found

    def _write(self, line: bytes) -> None:
        pipe = cast(IO[bytes], self.process.stdin).fileno()
        os.set_blocking(pipe, False)
        with selectors.DefaultSelector() as ready:
            ready.register(pipe, selectors.EVENT_WRITE)
            while line:
                if not ready.select(ANSWER_S):
                    raise self._wrong(f"has not read for {ANSWER_S:g} s")
                line = line[os.write(pipe, line) :]

    def _line(self) -> bytes:
        stdout = cast(IO[bytes], self.process.stdout)
        with selectors.DefaultSelector() as ready:
            ready.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self.rest:
                if not ready.select(ANSWER_S):
                    raise self._wrong(f"has not answered for {ANSWER_S:g} s")
                more = stdout.read1(1 << 16)  # type: ignore[attr-defined]
                if not more:
                    raise self._wrong(self._end())
                self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        return line

    def _end(self) -> str:
        """How it ended, with the end of what it wrote to stderr."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        self.said.seek(0)
        last = self.said.read().decode(errors="replace").strip().splitlines()[-1:]
        return f"ended with exit code {self.process.returncode}{': ' + _cut(last[0]) if last else ''}"

    def _wrong(self, problem: str) -> FormatError:
        self.close()
        return FormatError(f"network program `{self.command}` {problem}", hint=HINT)

    def close(self) -> None:
        """Ends the program, which has a few seconds."""
        with contextlib.suppress(OSError, ValueError):
            os.write(cast(IO[bytes], self.process.stdin).fileno(), b'{"end": true}\n')
        with contextlib.suppress(OSError):
            cast(IO[bytes], self.process.stdin).close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        cast(IO[bytes], self.process.stdout).close()
        self.said.close()


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
