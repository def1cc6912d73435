"""Days of a training job as they are asked for, and their run."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.fleet.days.request import Days as Days
    from etude.world.fleet.days.request import TrainRequest as TrainRequest
    from etude.world.fleet.days.request import said_of as said_of
    from etude.world.fleet.days.request import train as train
    from etude.world.fleet.days.request import train_inputs as train_inputs

__getattr__ = face(__name__)
