import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).resolve().parents[2]):
    sys.path.insert(0, str(folder))
