"""Four steps of a program of `foreign_programs.py`: `python benchmarks/dry_foreign_program.py NAME [BATCH]`."""

import sys

from foreign_programs import PROGRAMS

step = PROGRAMS[sys.argv[1]](int(sys.argv[2]) if len(sys.argv) > 2 else 1)
for _ in range(4):
    step()
