from collections.abc import Sequence

from etude.world.policies import NodeLender, WantedDevices


def never(wanted: WantedDevices, lenders: Sequence[NodeLender], node_devices: int) -> dict[str, int]:
    """Nobody gives anything up."""
    return {}
