from dataclasses import dataclass
from pathlib import Path

from etude.base.figures import figure
from etude.base.talk import say
from etude.surface.verb import Verb

MODEL = (
    "llama3-8b", "--gpus", "16", "--tp", "4", "--pp", "2", "--micro-batch", "1", "--global-batch", "16", "--zero", "1",
)  # fmt: skip
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


@dataclass(frozen=True, kw_only=True)
class Demo:
    """The main workflow end to end on an embedded recording: no GPU, no server, no download

    etude demo
    etude demo --recording -o run/
    """

    out: str = figure("out", "where the demo's files go", "out/demo", names=("-o",))
    force: bool = figure("switch", "replace what is there", False, names=("-f",))
    torch: bool = figure("switch", "record a small program on this machine and replay it; needs PyTorch", False)
    recording: bool = figure("switch", "only write the embedded recording, as PyTorch wrote it, into --out", False)


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


def run(given: DemoInputs) -> None:
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
    _recorded(out)
    if given.torch:
        _replayed(out)
    _generated(out)
    _do("report", f"{out}/job", "--ran-on", "h200", "--title", "A small GPT on an H200", "-o", f"{out}/report.html",
        say="Back to the recording, as an HTML page:")  # fmt: skip
    say(
        f"\nOpen {out}/slow.html and {out}/report.html in a browser; the other files are in the same folder. Next: "
        "etude --help"
    )


def _recorded(out: Path) -> None:
    say("Two training steps of a small GPT, recorded on an NVIDIA H200 by `etude collect`, as PyTorch wrote them.")
    _do(
        "link",
        f"{out}/run",
        "-o",
        f"{out}/job",
        say="One graph: operators, launches, kernels and their dependencies.",
    )
    _do("check", f"{out}/job", say="Is it valid?")
    _do("breakdown", f"{out}/job", say="Where did the time go?")
    _do("simulate", f"{out}/job", "--system", "dgx-h200",
        say="Does the graph explain the time? Simulated from dependencies and durations alone:")  # fmt: skip
    _do("replay", f"{out}/run", "--plan", f"{out}/plans",
        say="Can it be replayed, operator by operator? As programs that need only PyTorch and NumPy:")  # fmt: skip


def _need_torch() -> None:
    from importlib.util import find_spec

    from etude.base.errors import UsageError

    if find_spec("torch") is None:
        raise UsageError("PyTorch is not installed", where="--torch", hint='pip install "etude[torch]"')


def _replayed(out: Path) -> None:
    import sys

    (out / "train.py").write_text(PROGRAM)
    _do("collect", "-o", f"{out}/trained", "--warmup", "32", "--steps", "2", "--", sys.executable, f"{out}/train.py",
        say="A small program: 32 steps without the profiler, then two that are recorded.")  # fmt: skip
    _do("replay", f"{out}/trained", "-o", f"{out}/replayed", "--device", "cpu", "--iterations", "15",
        say="Its operators replayed, compared with a step without the profiler:")  # fmt: skip


def _generated(out: Path) -> None:
    _do("generate", *MODEL, "-o", f"{out}/llama", say="Now a job that was never run: Llama 3 8B on 16 GPUs.")
    _do("query", f"{out}/llama", QUERY, say="What does it send?")
    _do("convert", f"{out}/llama", f"{out}/llama_et", "--to", "et",
        say="As Chakra .et files, one per rank, for every tool that reads them; no information is lost:")  # fmt: skip
    _do("diff", f"{out}/llama", f"{out}/llama_et", say="The same?")
    _cut_dependency(out / "llama_et")
    _do("check", f"{out}/llama_et", expect=1,
        say="And if rank 2 waits for a node that does not exist? The demo has just cut its file:")  # fmt: skip
    _do("predict", *MODEL, "--system", "dgx-h100", say="How long would a step take on two DGX H100?")
    _do("simulate", f"{out}/llama", "--system", "dgx-h100", "--slow-rank", "3=1.2", "--timing", f"{out}/slow.parquet",
        say="And if the GPU of rank 3 were 20% slower? All ranks wait for it. (The times are those of "
        "`predict --stack none`: what a software stack loses is in `predict` alone.)")  # fmt: skip
    _do("report", f"{out}/llama", "--timing", f"{out}/slow.parquet", "--ran-on", "h100", "--title",
        "Llama 3 8B on 16 GPUs, one of them slow", "-o", f"{out}/slow.html",
        say="Can the slow rank be found? As a page:")  # fmt: skip


def _do(*args: str, say: str, expect: int = 0) -> None:
    """Show a command as a user would type it, and run it."""
    import sys

    from etude.base.errors import EtudeError
    from etude.surface.cli import main

    sys.stdout.flush()
    shown = " ".join(f'"{a}"' if " " in a else a for a in args)
    print(f"\n{say}\n$ etude {shown}", file=sys.stderr, flush=True)
    code = main(list(args))
    sys.stdout.flush()
    if code != expect:
        raise EtudeError(f"the demo expected exit code {expect} from `etude {args[0]}`, and got {code}")


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


VERBS = (Verb(name="demo", asks=Demo, inputs=inputs, run=run, show=lambda result: None),)
