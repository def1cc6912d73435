"""Damaged `.et` files, four times as many as the tests read: refused with a place, or read as protobuf reads them.

python benchmarks/validate_fuzz.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

if __name__ == "__main__":
    import fuzz_et

    sys.exit(fuzz_et.main(["--cases", "12000", "--seed", "1"]))
