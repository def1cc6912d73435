"""What `--packets` chooses of a job: see `detail`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from etude.base.errors import UsageError
from etude.base.units import parse_time
from etude.model.schema import Collective

ALL, AUTO, MESSAGE = "all", "auto", "message"
_WINDOW: Final = re.compile(r"([\d.]+ *[mun\u00b5]?s)-([\d.]+ *[mun\u00b5]?s)")
_COLLECTIVES: Final = {c.name.lower(): c for c in Collective if c}


class PacketScope(NamedTuple):
    """What `--packets` chose."""

    all: bool = False
    auto: bool = False
    messages: bool = False
    collectives: tuple[Collective, ...] = ()
    windows: tuple[tuple[int, int], ...] = ()
    places: tuple[str, ...] = ()
    """Vertices, or two of them with `/` in between."""


def packet_scope(texts: Sequence[str]) -> PacketScope:
    found = PacketScope()
    for text in texts:
        window = _WINDOW.fullmatch(text)
        if text == ALL:
            found = found._replace(all=True)
        elif text == AUTO:
            found = found._replace(auto=True)
        elif text == MESSAGE:
            found = found._replace(messages=True)
        elif text in _COLLECTIVES:
            found = found._replace(collectives=(*found.collectives, _COLLECTIVES[text]))
        elif window:
            since_ns, until_ns = (parse_time(part) for part in window.groups())
            if since_ns >= until_ns:
                raise UsageError(f"--packets: the window `{text}` ends before it begins", hint="--packets 5ms-8ms")
            found = found._replace(windows=(*found.windows, (since_ns, until_ns)))
        else:
            found = found._replace(places=(*found.places, text))
    return found
