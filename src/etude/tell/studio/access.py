"""Who may ask the studio: only this machine, only with the token in the address, and no page of anybody else."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Final

LOCAL: Final = ("127.0.0.1", "localhost")
"""Names of this machine in an address. A page that reached it under another name came by DNS rebinding."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors {frames}"
)
NOTEBOOKS: Final = "http://127.0.0.1:* http://localhost:* https://127.0.0.1:* https://localhost:*"
"""Pages of this machine in which a cell may show the studio."""


@dataclass(frozen=True, slots=True)
class StudioAccess:
    """The token and the address of a server. `framed`: pages of this machine may embed it."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    framed: bool = False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(f"{name}:{self.port}" for name in LOCAL)

    def refusal(self, path: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """(status, why) of a request that is not answered; None if it is."""
        if headers.get("host", "").lower() not in self.hosts:
            return 421, "this server answers under its own name only: 127.0.0.1"
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in {f"http://{host}" for host in self.hosts}:
            return 403, "another page asks"
        given = path.split("/")[1] if path.startswith("/") else ""
        if not compare_digest(given.encode(), self.token.encode()):
            return 403, "the token is wrong: open the address that `etude studio` printed"
        return None

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every answer."""
        return {
            "content-security-policy": POLICY.format(frames=NOTEBOOKS if self.framed else "'none'"),
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
            "cross-origin-resource-policy": "same-site" if self.framed else "same-origin",
            "cache-control": "no-store",
        }
