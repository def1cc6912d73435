"""`forked.py SIZE PROGRAM ARG...`: the program as so many ranks, forked from one process that has imported PyTorch."""

import os
import runpy
import sys
from importlib import import_module

LATER = ("torch._inductor", "torch._dynamo")
"""What a profiler and an optimizer import: once for all ranks."""


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
            runpy.run_path(program, run_name="__main__")
            return 0
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main())
