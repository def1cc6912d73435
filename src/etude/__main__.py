"""`python -m etude` is `etude`."""

import sys

from etude.surface.cli import main

if __name__ == "__main__":
    sys.exit(main())
