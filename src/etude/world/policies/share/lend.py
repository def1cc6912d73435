from collections.abc import Sequence

from etude.world.policies import NodeLender, WantedDevices


def lend(wanted: WantedDevices, lenders: Sequence[NodeLender], node_devices: int) -> dict[str, int]:
    """Lenders give up nodes, the first of them first, as long as they can still run."""
    left, found = -(-wanted.devices // node_devices), dict[str, int]()
    for one in lenders:
        given = min(left, one.nodes - one.needed)
        if given > 0 and one.lends_to in ("", wanted.name):
            found[one.name] = given
            left -= given
    return found
