from collections.abc import Sequence

from etude.world.policies import NodeLender, WantedDevices


def gavel(wanted: WantedDevices, lenders: Sequence[NodeLender], node_devices: int) -> dict[str, int]:
    """Max-min fair, as Gavel is on devices of one kind: each node comes from the lender that has most left."""
    able = {one.name: one.nodes for one in lenders if one.lends_to in ("", wanted.name)}
    needed, found = {one.name: one.needed for one in lenders}, dict[str, int]()
    for _ in range(-(-wanted.devices // node_devices)):
        able = {name: left for name, left in able.items() if left > needed[name]}
        if not able:
            break
        most = max(able, key=lambda name: able[name])
        able[most] -= 1
        found[most] = found.get(most, 0) + 1
    return found
