"""Replays the communication of a job, that is collectives, messages and waits, through `torch.distributed`.

    plan                    programs of the communication of a job
    shrinking, rehearsal    fit programs to the available processes; check their communication without running it
    processes, worker       one process for each program, on this machine or under torchrun
    calls, player, flight   the calls, their times, and what PyTorch's own recorder saw of them
    outcome                 the resulting run

`calls`, `player`, `flight` and `worker` need only the standard library, NumPy and PyTorch.
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.run.replay.communication.outcome import communication_figures as communication_figures
    from etude.run.replay.communication.outcome import communication_run as communication_run
    from etude.run.replay.communication.plan import plan_communication as plan_communication
    from etude.run.replay.communication.probe import probe_links as probe_links
    from etude.run.replay.communication.processes import PlayOptions as PlayOptions
    from etude.run.replay.communication.processes import play as play
    from etude.run.replay.communication.rehearsal import rehearse as rehearse
    from etude.run.replay.communication.shrinking import shrink as shrink

__getattr__ = face(__name__)
