"""`python -m etude.replay PROGRAMS|JOB -o OUT`: plays the program of this rank. Under `torchrun` the ranks are its
ranks.

    torchrun --nproc-per-node 4 -m etude.replay job/ -o replayed/ --iterations 10
    python -m etude.replay plans/ -o replayed/          # program files: needs PyTorch and NumPy, nothing else

A folder of `rank0.program` files can be played without Etude's other dependencies; a job is planned first.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from etude.base.errors import EtudeError


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if "communication" in words:  # each process runs `etude replay` itself
        return int(import_module("etude.surface.cli").main(["replay", *words]))
    options = _parser().parse_args(words)
    try:
        result = run(options)
    except EtudeError as problem:
        sys.stderr.write(f"error: {problem}\n")
        return problem.exit_code
    except KeyboardInterrupt:
        return 130
    if result is not None:
        sys.stdout.write(json.dumps(result) + "\n")
    return 0


def run(options: argparse.Namespace) -> dict[str, Any] | None:
    """Plays what the options select. Returns a summary on rank 0, None on other ranks; with `--only` the summary covers
    only the programs that rank 0 played."""
    from etude.run.replay.covering import of_ranks
    from etude.run.replay.playing import PlayerOptions, environment_rank, play, summary
    from etude.run.replay.program import ENDING, load
    from etude.run.replay.together import play_together

    rank, world = environment_rank()
    path = Path(options.job)
    files = sorted(path.glob(f"*{ENDING}")) if path.is_dir() else [path] if path.suffix == ENDING else []
    if files:
        programs = sorted(map(load, files), key=lambda program: int(program.about["rank"]))
    else:
        from etude import open as open_job
        from etude.run.replay.planning import plan

        job = open_job(path)
        first = job.ranks.tolist()[:world] if options.ranks == "first" else None
        programs = plan(job, first, recording=path, trust_code=options.trust_code)
    chosen = PlayerOptions(
        iterations=options.iterations, warmup=options.warmup, only=options.only, speed=options.speed,
        device=options.device, threads=options.threads, host=options.host, cuda_graph=options.cuda_graph,
        trust_code=options.trust_code,
    )  # fmt: skip
    out = Path(options.out) if options.out else None
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    if options.only:
        results = [play(program, chosen, out=out) for program in programs[rank::world]]
    elif len(programs) > 1:
        results = play_together(programs, chosen, out=out, backend=options.backend)
    else:
        results = [play(programs[0], chosen, out=out)]
    return summary(results, of_ranks([one["coverage"] for one in results])) if rank == 0 else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m etude.replay", description="Replays the program of this rank.")
    parser.add_argument("job", help="a folder of .program files, one such file, or a job")
    parser.add_argument("-o", "--out", default="", help="folder for a trace and the result of each rank")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--ranks", choices=("all", "first"), default="all", help="first: as many as processes")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--only", choices=("compute",), default="")
    parser.add_argument("--speed", choices=("flat-out", "recorded"), default="flat-out")
    parser.add_argument("--host", choices=("fast", "recorded"), default="", help="time of the host between calls")
    parser.add_argument("--cuda-graph", action="store_true", help="all steps of an iteration as one CUDA graph")
    parser.add_argument("--device", default="", help="cpu, cuda, cuda:1")
    parser.add_argument("--threads", type=int, default=0, help="threads of an operator on a CPU")
    parser.add_argument(
        "--trust-code", action="store_true", help="run compiled code that was recorded on another machine"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
