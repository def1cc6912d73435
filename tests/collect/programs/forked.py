"""`forked.py SIZE PROGRAM ARG...`: the program as so many ranks, forked from one process that has imported PyTorch."""

import atexit
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import NoReturn

LATER = ("torch._inductor", "torch._dynamo")
"""What a profiler and an optimizer import: once for all ranks."""


def _run(program: str) -> NoReturn:
    """Runs a program and leaves without freeing what it made: PyTorch may wait for itself where a process group of gloo
    and its last calls are freed by two threads."""
    kept = {"__name__": "__main__", "__file__": program}
    exec(compile(Path(program).read_text("utf-8"), program, "exec"), kept)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main() -> int:
    for module in ("torch.distributed.fsdp", "torch.distributed.tensor.parallel", *LATER):
        import_module(module)
    size, program = int(sys.argv[1]), sys.argv[2]
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
            sys.argv = sys.argv[2:]
            _run(program)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main())
