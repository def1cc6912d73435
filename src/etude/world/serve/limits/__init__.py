"""Limits that goodput counts by: `ttft=1s,tpot=50ms`, of all requests or by tier."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.serve.limits.slo import least as least
    from etude.world.serve.limits.slo import parse_limits as parse_limits

__getattr__ = face(__name__)
