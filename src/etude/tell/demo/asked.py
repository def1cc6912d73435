"""The main workflow end to end: what `etude demo` asks for, and the commands that it runs."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from etude.base.errors import EtudeError, UsageError
from etude.base.figures import figure, switch
from etude.base.talk import say

Execute: TypeAlias = Callable[[list[str]], int]
MODEL = "llama3-8b --gpus 16 --tp 4 --pp 2 --micro-batch 1 --global-batch 16 --zero 1"
QUERY = (
    "select collective, count(*) as times, sum(in_bytes) as bytes from nodes "
    "where kind = 'COMM_COLL_NODE' group by 1 order by 3 desc limit 5"
)
PROGRAM = """import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(
    torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.LayerNorm(1024), torch.nn.Linear(1024, 1024), torch.nn.GELU(),
    torch.nn.Linear(1024, 16),
)
optimizer = torch.optim.AdamW(model.parameters())
x, target = torch.randn(256, 512), torch.randint(16, (256,))
for _ in range(40):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), target).backward()
    optimizer.step()
"""
"""What `--torch` records. It knows nothing of Etude."""
RECORDED = (
    ("One graph: operators, launches, kernels and their dependencies.", "link {out}/run -o {out}/job"),
    ("Is it valid?", "check {out}/job"),
    ("Where did the time go?", "breakdown {out}/job"),
    (
        "Does the graph explain the time? Simulated from dependencies and durations alone:",
        "simulate {out}/job --system dgx-h200",
    ),
    (
        "Can it be replayed, operator by operator? As programs that need only PyTorch and NumPy:",
        "replay {out}/run --plan {out}/plans",
    ),
)
"""What is said, and the command that follows."""
REPLAYED = (
    (
        "A small program: 32 steps without the profiler, then two that are recorded.",
        "collect -o {out}/trained --warmup 32 --steps 2 -- {python} {out}/train.py",
    ),
    (
        "Its operators replayed, compared with a step without the profiler:",
        "replay {out}/trained -o {out}/replayed --device cpu --iterations 15",
    ),
)
GENERATED = (
    ("Now a job that was never run: Llama 3 8B on 16 GPUs.", "generate {model} -o {out}/llama"),
    ("What does it send?", 'query {out}/llama "{query}"'),
    (
        "As Chakra .et files, one per rank, for every tool that reads them; no information is lost:",
        "convert {out}/llama {out}/llama_et --to et",
    ),
    ("The same?", "diff {out}/llama {out}/llama_et"),
    (
        "And if rank 2 waits for a node that does not exist? The demo has just cut its file:",
        "check {out}/llama_et",
        1,
    ),
    ("How long would a step take on two DGX H100?", "predict {model} --system dgx-h100"),
    (
        "And if the GPU of rank 3 were 20% slower? All ranks wait for it. (The times are those of "
        "`predict --stack none`: what a software stack loses is in `predict` alone.)",
        "simulate {out}/llama --system dgx-h100 --slow-rank 3=1.2 --timing {out}/slow.parquet",
    ),
    (
        "Can the slow rank be found? As a page:",
        "report {out}/llama --timing {out}/slow.parquet --ran-on h100 --title "
        '"Llama 3 8B on 16 GPUs, one of them slow" -o {out}/slow.html',
    ),
    (
        "Back to the recording, as an HTML page:",
        'report {out}/job --ran-on h200 --title "A small GPT on an H200" -o {out}/report.html',
    ),
)
"""A number is the exit code that is expected."""


@dataclass(frozen=True, kw_only=True)
class Demo:
    """The main workflow end to end on an embedded recording: no GPU, no server, no download

    etude demo
    etude demo --recording -o run/
    """

    out: str = figure("out", "where the demo's files go", "out/demo", names=("-o",))
    force: bool = switch("replace what is there", names=("-f",))
    torch: bool = switch("record a small program on this machine and replay it; needs PyTorch")
    recording: bool = switch("only write the embedded recording, as PyTorch wrote it, into --out")


@dataclass(frozen=True, slots=True)
class DemoInputs:
    out: Path
    force: bool
    recording: bool
    torch: bool = False


def inputs(asked: Demo) -> DemoInputs:
    out, force = Path(asked.out), asked.force
    if asked.recording:
        return DemoInputs(out, force, True)
    if asked.torch:
        _need_torch()
    return DemoInputs(out, force, False, asked.torch)


def run(given: DemoInputs, execute: Execute) -> None:
    """The tour; `execute` runs a command and gives its exit code."""
    import shutil
    from importlib.resources import as_file, files

    from etude.base.files import writing

    out, sample_of = given.out, files("etude") / "capture" / "sample"
    if given.recording:
        with writing(out, force=given.force) as folder, as_file(sample_of) as sample:
            shutil.copytree(sample, folder, dirs_exist_ok=True)
        say(f"wrote {out}: two training steps of a small GPT, recorded on an NVIDIA H200")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    if (out / ".etude-demo").exists():
        shutil.rmtree(out)
    with writing(out, force=given.force) as folder, as_file(sample_of) as sample:
        shutil.copytree(sample, folder / "run")
        (folder / ".etude-demo").touch()
    say("Two training steps of a small GPT, recorded on an NVIDIA H200 by `etude collect`, as PyTorch wrote them.")
    values = {"out": shlex.quote(str(out)), "python": shlex.quote(sys.executable), "model": MODEL, "query": QUERY}
    parts = (RECORDED, REPLAYED if given.torch else (), GENERATED)
    for text, command, *expected in (step for part in parts for step in part):
        if "train.py" in command:
            (out / "train.py").write_text(PROGRAM)
        if expected:
            _cut_dependency(out / "llama_et")
        _do(execute, text, command.format(**values), *expected)
    say(
        f"\nOpen {out}/slow.html and {out}/report.html in a browser; the other files are in the same folder. Next: "
        "etude --help"
    )


def _need_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise UsageError("PyTorch is not installed", where="--torch", hint='pip install "etude[torch]"')


def _do(execute: Execute, text: str, command: str, expected: int = 0) -> None:
    """Show a command as a user would type it, and run it."""
    sys.stdout.flush()
    say(f"\n{text}\n$ etude {command}")
    words = shlex.split(command)
    code = execute(words)
    sys.stdout.flush()
    if code != expected:
        raise EtudeError(f"the demo expected exit code {expected} from `etude {words[0]}`, and got {code}")


def _cut_dependency(folder: Path) -> None:
    """Make the last node of rank 2 wait for a node that does not exist, as in a recording that began too late."""
    import numpy as np

    from etude.store import chakra

    path = next(folder.glob("*.2.et"))
    decoded = chakra.decode(path.read_bytes(), str(path))
    data = decoded.trace.data.copy()
    data[-1] = ~0
    trace = decoded.trace.replace(data=data, missing=np.array([900_001], np.uint64))
    whole = chakra.Decoded(
        trace, decoded.metadata, decoded.group_names, decoded.peers, decoded.start_ns, decoded.warnings
    )
    path.write_bytes(chakra.encode(whole))
