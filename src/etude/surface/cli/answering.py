"""The process of `etude mcp` that answers calls, with a limit on its memory.

python -m etude.surface.cli.answering BYTES ROOT [WRITE]       a call a line on stdin, its answer a line on stdout
"""

import json
import os
import resource
import sys
from pathlib import Path


def answer_calls(memory_bytes: str, root: str, write: str = "") -> None:
    """Answers until stdin ends."""
    from etude.surface.cli.registry import all_verbs
    from etude.surface.mcp.access import FolderAccess
    from etude.surface.mcp.server import call_tool
    from etude.surface.mcp.tools import tools

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    access = FolderAccess(Path(root), Path(write) if write else None)
    known = tools(access, all_verbs())
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory_bytes), int(memory_bytes)))
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        name, given = json.loads(line)
        answers.write(json.dumps(call_tool(known, name, given, access)) + "\n")
        answers.flush()


if __name__ == "__main__":
    answer_calls(*sys.argv[1:])
