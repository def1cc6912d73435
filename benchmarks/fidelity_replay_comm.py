"""Is replayed communication that of the trace? All recordings of several ranks, and 64 generated ranks on 4 processes.

    python benchmarks/fidelity_replay_comm.py [NAME ...]        # needs PyTorch; about 10 minutes on two cores

Each line is what `etude replay --only communication --json` prints: calls of an iteration over all processes, how many
of them PyTorch's Flight Recorder saw and how many were held at the call, differences, and the time of an iteration.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

SHARED = Path(__file__).resolve().parents[2] / "shared" / "traces" / "torch_cpu"
GENERATE = ("generate", "gpt2", "--gpus", "64", "--tp", "4", "--pp", "2", "--seq", "128", "--global-batch", "64")
FOUR = ("--ranks", "0,1,32,33")


def etude(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "etude", *words], capture_output=True, text=True, check=False)


def show(name: str, job: Path, *more: str) -> int:
    done = etude("replay", str(job), "--only", "communication", "--iterations", "5", "--json", *more)
    if done.returncode not in (0, 1) or not done.stdout:
        print(f"{name:24} {done.stderr.strip().splitlines()[-1:]}")
        return 1
    found = json.loads(done.stdout)
    seen, left = found["verified"], sum(entry["count"] for entry in found["stand_ins"])
    print(f"{name:24} {len(found['ranks']):5} {seen['calls']:6} {seen['by_flight_recorder']:9} {seen['at_call']:8} "
          f"{len(seen['differences']):12} {left:9} {found['step_ns']['replayed'] / 1e6:10.1f}")  # fmt: skip
    return len(seen["differences"])


def main() -> int:
    wanted = sys.argv[1:]
    print(f"{'job':24} ranks  calls  recorder  at call  differences  left out  ms an iteration")
    names = sorted({path.name.partition(".")[0] for path in SHARED.glob("*.rank1.kineto.json.gz")})
    wrong = sum(show(name, SHARED / name) for name in names if not wanted or name in wanted)
    if not wanted or "generated" in wanted:
        with tempfile.TemporaryDirectory() as folder:
            job = Path(folder) / "job"
            made = etude(*GENERATE, "-o", str(job))
            if made.returncode:
                print(made.stderr)
                return 1
            for sizes in ("kept", "scaled"):
                wrong += show(f"64 ranks, {sizes}", job, *FOUR, "--sizes", sizes)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
