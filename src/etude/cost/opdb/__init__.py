"""The operator database: measured times of operators by device, backend and model-fixed dimensions, with curves over
what requests decide; what it lacks for a set of models, and how it is measured."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.cost.opdb import worker as worker
    from etude.cost.opdb.curves import TimeOrigin as TimeOrigin
    from etude.cost.opdb.database import OpDatabase as OpDatabase
    from etude.cost.opdb.database import add_rows as add_rows
    from etude.cost.opdb.database import read_ops as read_ops
    from etude.cost.opdb.database import read_points as read_points
    from etude.cost.opdb.keys import shapes_of as shapes_of
    from etude.cost.opdb.schema import Shapes as Shapes

__getattr__ = face(__name__)
