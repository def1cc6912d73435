"""`python -m etude.replay PROGRAMS|JOB -o OUT`: see `etude.run.replay`. `etude.replay(job)` can be called too."""

from etude.base.faces import verb
from etude.run.replay.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())
verb(__name__)
