"""Runs a job again on real devices: plan a program of it, play the program.

The program and its player need the standard library, NumPy and PyTorch alone.
"""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.replay.program import Program as Program

__getattr__ = face(__name__)
