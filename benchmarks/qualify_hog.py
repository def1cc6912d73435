"""Does `etude qualify` see a busy host? Measures this machine three times as it is and once with hogs on its CPUs.

    python benchmarks/qualify_hog.py            # about a minute

The hogs are two processes a CPU that count. What is printed is what the user's commands give.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HOGS = 2 * len(os.sched_getaffinity(0))


def etude(*words: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-m", "etude", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def main() -> None:
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs before anything runs")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name in ("first", "second", "third"):
            code, _, told = etude("qualify", "-o", str(place / f"{name}.json"), "--processes", "2")
            print(f"{name:8} measured, exit code {code}", told.strip().splitlines()[-1:] or "")
        others = ["--against", str(place / "first.json"), "--against", str(place / "second.json")]
        code, out, _ = etude("qualify", "--measured", str(place / "third.json"), *others, "--json")
        report("as it is", code, out)
        hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(HOGS)]
        try:
            etude("qualify", "-o", str(place / "busy.json"), "--processes", "2")
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()
        code, out, _ = etude("qualify", "--measured", str(place / "busy.json"), *others, "--json")
        report(f"with {HOGS} hogs", code, out)


def report(what: str, code: int, out: str) -> None:
    found = json.loads(out)
    mine = [f for f in found["findings"] if f["node"] == found["node"]]
    print(f"{what}: exit code {code}, {len(mine)} findings")
    for finding in mine:
        print(f"  {finding['part']} {finding['device']} slower by {finding['slow_down']:.1%} against "
              f"{finding['against']}: {finding['figures']}")  # fmt: skip
    print(f"  uncertain: {', '.join(found['uncertain']) or '-'}")


if __name__ == "__main__":
    main()
