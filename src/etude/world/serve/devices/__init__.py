"""Devices of several kinds that calls of workflows are placed on, one call of a device at a time.

spec        devices from a file
graph       calls of all sessions with what each takes on each kind of device, as arrays
costs       time of a model call on a kind of device
state       what devices hold, and when a call would end there
plan        earliest finish over the ready frontier, and with a look ahead
policies    which call goes where: built in, or a function of yours
run         sessions call by call, with a policy that places them
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.serve.devices.costs import costs_on as costs_on
    from etude.world.serve.devices.graph import sessions_of as sessions_of
    from etude.world.serve.devices.results import beside as beside
    from etude.world.serve.devices.results import placed_summary as placed_summary
    from etude.world.serve.devices.run import run_placed as run_placed
    from etude.world.serve.devices.spec import open_devices as open_devices

__getattr__ = face(__name__)
