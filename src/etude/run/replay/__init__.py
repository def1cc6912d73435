"""Runs a job again on real devices: first plans a program from it, then plays the program.

The program and its player need only the standard library, NumPy and PyTorch.
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.run.replay.covering import coverage as coverage
    from etude.run.replay.covering import of_ranks as of_ranks
    from etude.run.replay.planning import plan as plan
    from etude.run.replay.playing import PlayerOptions as PlayerOptions
    from etude.run.replay.playing import play as play
    from etude.run.replay.playing import summary as summary
    from etude.run.replay.program import Program as Program
    from etude.run.replay.together import play_together as play_together

__getattr__ = face(__name__)
