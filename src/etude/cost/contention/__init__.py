"""Concurrent kernels on one device: what is a queue, what is sharing, what waves cost."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.cost.contention.launches import Launch as Launch
    from etude.cost.contention.launches import filling as filling
    from etude.cost.contention.launches import launch_of as launch_of
    from etude.cost.contention.launches import transfer_of as transfer_of
    from etude.cost.contention.meeting import beside as beside
    from etude.cost.contention.meeting import excess as excess
    from etude.cost.contention.rows import predicted_rows as predicted_rows
    from etude.cost.contention.rows import work_of as work_of

__getattr__ = face(__name__)
