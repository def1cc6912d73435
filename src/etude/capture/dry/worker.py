"""One rank of a dry run: PyTorch with its modes and stand-ins set, the script, and what was seen."""

import functools
import gzip
import os
import runpy
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import msgspec

from etude.capture.collect.steps import OptimizerClock
from etude.capture.dry import cuda, groups
from etude.capture.dry.assumptions import STATED
from etude.capture.dry.buckets import Buckets
from etude.capture.dry.calls import ModelCalls
from etude.capture.dry.casts import set_casts
from etude.capture.dry.decisions import Decisions
from etude.capture.dry.exchanges import Exchanges
from etude.capture.dry.fake_results import FakeResults
from etude.capture.dry.fakes import fake_mode, with_numbers
from etude.capture.dry.functions import answering
from etude.capture.dry.in_place import InPlace
from etude.capture.dry.marks import on_end_of_step
from etude.capture.dry.modules import watch_modules
from etude.capture.dry.numbers import Numbers, show_known_as_real
from etude.capture.dry.optimizers import MOST_LATE, NEVER, MadeOptimizers
from etude.capture.dry.placements import ask_placements_once, look_away_from_placements
from etude.capture.dry.post import OtherRankError, Post
from etude.capture.dry.problems import DrivenError
from etude.capture.dry.processes import refuse_processes
from etude.capture.dry.shards import ShardCuts
from etude.capture.dry.values import Answers, AskedShapeError, AskedValueError, is_foreign
from etude.capture.dry.watch import COLUMNS, HOST, Watch, watching

FORMAT = 1


class StepsDone(BaseException):
    """All steps that were asked for are recorded: the rest of the program is not run."""


def run_rank(torch: Any, folder: Path, settings: dict[str, Any], words: list[str]) -> None:
    """Runs a rank in this process, which does nothing else, and writes what it did."""
    with open(os.devnull, "r+") as nowhere:
        os.dup2(nowhere.fileno(), 0)
        for stream in (1, 2) if settings["rank"] else ():
            os.dup2(nowhere.fileno(), stream)
    _environment(settings)
    run = DryRun(torch, folder, settings)
    outcome = run.run(words)
    file = folder / f"rank.{settings['rank']}.json.gz"
    written = msgspec.json.encode(run.recorded() | outcome)
    file.with_suffix(".part").write_bytes(gzip.compress(written, compresslevel=1))
    file.with_suffix(".part").rename(file)
    sys.stdout.flush()
    sys.stderr.flush()


def _environment(settings: dict[str, Any]) -> None:
    rank, world, local = settings["rank"], settings["world"], settings["local_world"]
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank % local),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(rank // local),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "dry",
        "TOKENIZERS_PARALLELISM": "false",
    }


class DryRun:
    """PyTorch with its modes and stand-ins set, and what was seen."""

    def __init__(self, torch: Any, folder: Path, settings: dict[str, Any]) -> None:
        self._torch, self._settings = torch, settings
        self._first, self._steps = settings["warmup"], settings["steps"]
        self._is_brief = settings["rank"] in settings["brief"]
        self.watch = Watch(torch)
        self.watch.storages.follow_sizes(torch)
        self.answers = Answers(settings["answers"])
        self.answers.read = self.watch.read
        self.notes: set[str] = set()
        self._cut_short = False
        self._cuts: ShardCuts | None = None
        called: list[Any] = []
        real = with_numbers(torch)
        self._exchanges = Exchanges(torch, lambda: self.watch.reduction)
        self._numbers = Numbers(torch, real, self._exchanges)
        fake = fake_mode(torch)
        self._modes = [answering(torch, self.answers, self._numbers, called), fake]
        results = FakeResults(torch, fake)
        decisions = Decisions(torch, self.answers, Buckets(torch, real), called, self._numbers, results)
        self._in_place = InPlace(torch, called)
        self._modes.append(watching(torch, self.watch, decisions, self._in_place))
        if not settings["device"]:
            self.watch.stream = HOST
        else:
            self._casts = set_casts(torch)
            device = cuda.DryDevice(**settings["device"])
            local = settings["local_world"]
            cuda.stand_in(torch, self.watch, device, local_rank=settings["rank"] % local, local_world=local)
        if torch.distributed.is_available():
            post = Post(folder, settings["rank"], settings, real)
            groups.stand_in(torch, self.watch, real, post, rank=settings["rank"], world=settings["world"])
            self._cuts = ShardCuts(torch)
            ask_placements_once()
            look_away_from_placements(self.watch)
        self._loaders()
        refuse_processes(torch)
        self._compile()
        show_known_as_real(torch, self._numbers)
        wanted = self._first + self._steps if self._steps else 0
        self._made, self._late = MadeOptimizers(torch), 0
        self._calls = ModelCalls(torch, self.watch, self._made, wanted=wanted, done=self._called_enough)
        watch_modules(torch, self.watch, self._calls)
        self._clock = OptimizerClock(torch, self._stepped, self._regroup)
        on_end_of_step(self.watch.end_step)

    def run(self, command: list[str]) -> dict[str, Any]:
        """Runs the script; how it ended."""
        sys.argv = command[1:] if command[0] == "-m" else command
        for mode in self._modes:
            mode.__enter__()
        self._in_place.learn()
        problem: dict[str, Any] | None = None
        try:
            if command[0] == "-m":
                runpy.run_module(command[1], run_name="__main__", alter_sys=True)
            else:
                sys.path[0] = os.path.dirname(os.path.abspath(command[0]))
                runpy.run_path(command[0], run_name="__main__")
        except StepsDone:
            pass
        except AskedValueError as asked:
            problem = {"kind": "value", "where": asked.where, "line": asked.line, "name": asked.name}
        except AskedShapeError as asked_shape:
            problem = {"kind": "shape", "where": asked_shape.where, "line": asked_shape.line}
        except OtherRankError as other:
            problem = {"kind": "other", "rank": other.rank}
        except DrivenError as refused:
            where = refused.where or (_problem(refused.__cause__)["where"] if refused.__cause__ else "")
            problem = {"kind": "driven", "what": refused.problem, "where": where, "hint": refused.hint}
        except SystemExit as ended:
            if ended.code not in (None, 0):
                problem = {"kind": "exit", "what": str(ended.code)}
        except BaseException as raised:
            problem = _problem(raised)
            kinds = {
                "DynamicOutputShapeException": "shape",
                "DataDependentOutputException": "value",
                "OwnProcessesError": "processes",
            }
            problem["kind"] = kinds.get(problem["what"], problem["kind"])
        finally:
            for mode in reversed(self._modes):
                mode.__exit__(None, None, None)
        return {"problem": problem}

    def recorded(self) -> dict[str, Any]:
        """All that was seen, in columns."""
        watch, storages = self.watch, self.watch.storages
        columns: list[Any] = list(zip(*watch.rows, strict=True)) or [[] for _ in COLUMNS]
        return {
            "format": FORMAT,
            "torch": str(self._torch.__version__),
            "rank": self._settings["rank"],
            "world": self._settings["world"],
            "steps": watch.step,
            "words": watch.words.words,
            "columns": dict(zip(COLUMNS, columns, strict=True)),
            "groups": watch.groups,
            "group_members": watch.made_groups,
            "storages": {
                "events": list(storages.events),
                "places": storages.places,
                "streams": storages.streams,
                "made_at": storages.made_at,
                "roles": storages.roles,
            },
            "step_events": watch.step_events,
            "calls": self._calls.rows,
            "cut_short": self._cut_short,
            "shard_cuts": self._cuts.written() if self._cuts else [],
            "unknown": self.answers.unknown,
            "answered": self.answers.used,
            "exchanges": self._exchanges.rows,
            "notes": sorted(self.notes | STATED | self._numbers.assumed),
        }

    def _stepped(self, optimizer_steps: int) -> None:
        self.watch.end_step()
        self._end_if_done()

    def _regroup(self) -> bool:
        """The steps so far were parts of one, which an optimizer ends now that had not stepped before."""
        self.watch.join_steps()
        self._end_if_done()
        return True

    def _end_if_done(self) -> None:
        if not self._steps or self.watch.step < (1 if self._is_brief else self._first + self._steps):
            return
        if self._made.late and self._late < MOST_LATE:
            self._late += 1
            return
        if self._made.late:
            self.notes.add(NEVER)
        raise StepsDone

    def _called_enough(self) -> None:
        self._cut_short = True
        raise StepsDone

    def _loaders(self) -> None:
        """Data is read by the program's own process: workers would hand over tensors with numbers."""
        loader = self._torch.utils.data.DataLoader
        begin = loader.__init__

        def init(made: Any, *args: Any, **named: Any) -> None:
            if named.get("num_workers"):
                self.notes.add("a DataLoader with workers reads in the program's own process")
            named |= {"num_workers": 0, "pin_memory": False}
            for key in ("prefetch_factor", "persistent_workers", "multiprocessing_context"):
                named.pop(key, None)
            begin(made, *args, **named)

        loader.__init__ = functools.wraps(begin)(init)

    def _compile(self) -> None:
        def compile(model: Any = None, **named: Any) -> Any:  # noqa: A001 - stands for torch.compile
            self.notes.add("what torch.compile would fuse is recorded as single operators")
            return model if model is not None else (lambda given: given)

        self._torch.compile = compile
        self._torch.nn.Module.compile = lambda module, *args, **named: compile(module) and None
        # TorchScript would compile the functions that stand for PyTorch's own; what it makes has the same operators.
        self._torch.jit.script = lambda given, *args, **named: given


_LIBRARIES = tuple({path + os.sep for path in map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))})
"""Folders of files that are not the program's own."""


def _problem(raised: BaseException) -> dict[str, Any]:
    """Where the program's own code was, and what was raised."""
    frames = traceback.extract_tb(raised.__traceback__)
    not_torch = [f for f in frames if not is_foreign(f.filename)]
    own = [f for f in not_torch if not f.filename.startswith(_LIBRARIES)] or not_torch
    last = own[-1] if own else (frames[-1] if frames else None)
    where = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}" if last else ""
    text = "".join(traceback.format_exception(raised))
    return {
        "kind": "raised",
        "where": where,
        "line": (last.line or "") if last else "",
        "what": type(raised).__name__,
        "text": str(raised)[:2000],
        "traceback": text[-20000:],
    }
