"""Runs a job again on real devices: first plans a program from it, then plays the program.

The program and its player need only the standard library, NumPy and PyTorch.
"""

from typing import TYPE_CHECKING

from etude.faces import face, verb

if TYPE_CHECKING:
    from etude.replay.covering import coverage as coverage
    from etude.replay.covering import of_ranks as of_ranks
    from etude.replay.planning import plan as plan
    from etude.replay.playing import PlayerOptions as PlayerOptions
    from etude.replay.playing import play as play
    from etude.replay.playing import summary as summary
    from etude.replay.program import Program as Program
    from etude.replay.together import play_together as play_together

__getattr__ = face(__name__)
verb(__name__)
