"""Runs the code blocks of the pages that take too long for a test (`<!-- slow: WHY -->`), with their CPU seconds."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SLOW = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "<!-- slow:" in page.read_text()]

if __name__ == "__main__":
    command = [sys.executable, str(ROOT / "docs" / "blocks.py"), *map(str, SLOW), "--slow", "--times"]
    sys.exit(subprocess.run(command, check=False).returncode)
