"""The table of kinds. A file is of the first that its content fits."""

from __future__ import annotations

from typing import Final

from etude.decide.score import (
    collectives,
    contention,
    diffusion,
    energy,
    offload,
    operators,
    packets,
    recordings,
    requests,
    runs,
    serving,
    training,
)
from etude.decide.score.kind import ScoreKind

KINDS: Final[dict[str, ScoreKind]] = {
    kind.name: kind
    for kind in (
        training.KIND,
        serving.KIND,
        diffusion.KIND,
        runs.KIND,
        requests.KIND,
        operators.KIND,
        collectives.KIND,
        energy.KIND,
        contention.KIND,
        offload.KIND,
        packets.KIND,
        recordings.KIND,
    )
}
