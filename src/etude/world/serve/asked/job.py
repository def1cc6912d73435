"""A job that serves, `generate serve` and `predict serve`: its parameters, and the job that they say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import figure, part, text
from etude.base.outputs import OutputPlace, Printed
from etude.base.parameters import given_in, is_given, spelled
from etude.base.talk import say
from etude.base.units import format_bytes, format_count, format_time
from etude.make.generate import Plan
from etude.make.generate.serving import Serving
from etude.run.simulate.settings import SimulationSettings
from etude.steps.asked import plans
from etude.steps.asked.job_out import JobFiles, JobMade, MemoryOut, memory_place, written
from etude.steps.asked.plans import ModelOrConfig, memory_limit, model_asked, model_of, plan_asked
from etude.steps.asked.simulation import PANEL as SIMULATION
from etude.steps.asked.simulation import Checked, OnSystem, OpsInput, SimulationOptions, options_of

if TYPE_CHECKING:
    from etude.cost.needs import Quantised
    from etude.machine.system import System
    from etude.make.generate.model import Model
    from etude.make.generate.serving import Request, ServedJob

PANEL = "Serving"
EQUAL = ("prefill", "decode", "batch")
"""What equal requests are like: not read where a file has requests of its own."""


@dataclass(frozen=True, kw_only=True)
class ServingInput(ModelOrConfig):
    """Parameters of a job that serves."""

    plan: str | None = figure(
        "path", "YAML file with the plan; flags override it", None, like="fp8.yaml", panel="Input"
    )
    axes: Plan = part(Plan, plans.PANEL, only=Serving.AXES, later=True)
    serving: Serving = part(Serving, PANEL)
    requests: str | None = figure(
        "path", "a file of requests, as for `etude serve`; on a system they queue", None, panel=PANEL
    )
    draft: str = text("the model that proposes tokens", needs="speculate", like="gpt2", panel=PANEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSource:
    """A job that serves, before it is generated."""

    model: Model
    plan: Plan
    options: Serving
    requests: Path | None = None
    draft: Model | None = None
    name: str = ""

    @classmethod
    def of(cls, asked: ServingInput, name: str = "") -> ServingSource:
        """Without `gpus` there are as many ranks as one instance needs, or all instances of a split."""
        unread = [one for one in EQUAL if asked.requests is not None and is_given(asked, one)]
        if unread:
            problem = f"{spelled(asked, unread[0])} is not read with {spelled(asked, 'requests')}, whose file says it"
            raise UsageError(problem, hint="leave one of them out")
        options = Serving.from_dict(given_in(asked.serving))
        if asked.draft == "" and options.speculate:
            raise UsageError(f"{spelled(asked, 'speculate')} is read only with {spelled(asked, 'draft')}")
        model, said = model_asked(asked)
        axes = given_in(asked.axes)
        ranks = axes.get("tp", 1) * axes.get("pp", 1) * max(sum(options.split), 1)
        plan = plan_asked(asked, model, said, **({} if asked.plan is not None else {"gpus": ranks}))
        return cls(
            model=model,
            plan=plan,
            options=options,
            requests=None if asked.requests is None else Path(asked.requests),
            draft=model_of(asked.draft) if asked.draft else None,
            name=name,
        )

    def generate(
        self, system: System | None, *, memory: str = "", check: bool = True, weights: Quantised | None = None
    ) -> ServedJob:
        """The job, with weights of products kept as a kernel asks."""
        from etude.make.generate.serving import check_serving_memory, serve

        device = system.device if system else None
        requests = _requests(self.requests) if self.requests else None
        found = serve(
            self.model, self.plan, self.options, requests=requests, draft=self.draft, device=device, name=self.name,
            weights=weights,
        )  # fmt: skip
        if check:
            check_serving_memory(found, memory_limit(memory) if memory else device.memory_bytes if device else 0)
        return found


def _requests(path: Path) -> tuple[Request, ...]:
    """Requests from a file that `etude serve` reads; only tokens and times are used. Raises UsageError if requests wait
    for others."""
    from etude.make.generate.serving import Request
    from etude.world.serve.workloads import request_stream

    found = request_stream(path)
    if len(found.parent):
        raise UsageError("requests that wait for others cannot be generated", where=str(path), hint="etude serve")
    columns = (found.prompt.tolist(), found.output.tolist(), found.arrival_ns.tolist())
    return tuple(Request(*one) for one in zip(*columns, strict=True))


@dataclass(frozen=True, kw_only=True)
class GenerateServe(MemoryOut, ServingInput, JobMade):
    """The job of serving: requests answered pass by pass

    etude generate serve qwen3-8b --prefill 4096 --decode 256 --batch 32 --tp 2 -o job/
    etude generate serve llama3-70b --tp 4 --disaggregate 2:6 --prefill 2048 --decode 128 --batch 16 -o job/
    etude generate serve llama3-70b --tp 8 --requests requests.csv --system dgx-h100 --chunked --token-budget 2048 \\
        --kv-memory 20GB -o job/
    etude generate serve qwen3-8b --tp 2 --draft llama3.2-1b --speculate 4 --accept 0.7 --decode 255 --to et -o job/
    etude generate serve qwen3-30b-a3b --gpus 4 --tp 2 --ep 2 --no-write
    etude generate serve --hf config.json --tp 2 --no-write

    Without a file of requests all are equal and there at the start. On a system, requests of a file wait until passes
    end, whose times are simulated, and the memory of its device is the limit."""

    system: str = text(
        "simulate passes there; with --requests, requests wait until passes end",
        names=("-s",),
        like="dgx-a100",
        panel="Machine",
    )


@dataclass(frozen=True, slots=True)
class GenerateServeInputs:
    source: ServingSource
    system: System | None
    limit: str
    files: JobFiles
    memory: OutputPlace | None


def generate_inputs(asked: GenerateServe) -> GenerateServeInputs:
    from etude.machine import open_system

    system = open_system(asked.system) if asked.system else None
    source = ServingSource.of(asked, asked.name)
    return GenerateServeInputs(source, system, asked.memory, JobFiles.of(asked), memory_place(asked))


def run_generate(given: GenerateServeInputs) -> tuple[ServedJob, dict[str, Any]]:
    found = given.source.generate(given.system, memory=given.limit)
    return found, written(found, given)


def readable_job(result: tuple[ServedJob, dict[str, Any]]) -> dict[str, Any]:
    """The numbers of the job for a reader."""
    found = result[0]
    numbers = found.summary()
    return {
        "model": f"{found.model.name}, {format_count(numbers['params'])} parameters",
        "ranks": f"{numbers['ranks']:,}, {numbers['distinct_traces']} distinct programs",
        "requests": f"{numbers['requests']:,}: {numbers['prompt_tokens']:,} tokens in, "
        f"{numbers['output_tokens']:,} out",
        "passes": numbers["passes"],
        "nodes": f"{numbers['nodes']:,}",
        "operations": format_count(numbers["flops"]),
        "communication": {kind: format_bytes(size) for kind, size in numbers["comm_bytes_by_type"].items()},
        "peak memory": f"{format_bytes(numbers['memory_peak_bytes'])} (weights "
        f"{format_bytes(numbers['weights_bytes'])}, keys and values {format_bytes(numbers['kv_peak_bytes'])})",
    }


@dataclass(frozen=True, kw_only=True)
class PredictServe(ServingInput, OnSystem, OpsInput, Checked):
    """The times of requests that a model serves: first token, each further token, whole responses

    etude predict serve qwen3-8b --tp 2 --prefill 4096 --decode 256 --batch 32 --system dgx-h100
    etude predict serve llama3-70b --tp 8 --requests requests.csv --system dgx-h100 --chunked --token-budget 2048 \\
        --kv-memory 20GB
    etude predict serve qwen3-8b --tp 2 --draft llama3.2-1b --speculate 4 --accept 0.7 --decode 255 --system dgx-h100
    etude predict serve qwen3-30b-a3b --gpus 4 --tp 2 --ep 2 --system dgx-h100
    etude predict serve --hf config.json --tp 2 --system dgx-h100
    etude predict serve llama3-8b --prefill 512 --decode 64 --system h200 --kernel product:w4a16:g128

    `etude serve` serves a stream of requests on replicas."""

    settings: SimulationSettings = part(SimulationSettings, SIMULATION, only=("kernel", "units"))
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class PredictServeInputs:
    source: ServingSource
    system: System
    options: SimulationOptions
    check: bool


def predict_inputs(asked: PredictServe) -> PredictServeInputs:
    from etude.machine import open_system

    system = open_system(asked.system)
    return PredictServeInputs(ServingSource.of(asked), system, options_of(asked, system), asked.memory_check)


def run_predict(given: PredictServeInputs) -> dict[str, Any]:
    from etude.cost.choice import Menu
    from etude.steps import predict_serving

    options = given.options.by_name()
    weights = Menu.of(options.get("kernels", ()), options.get("units", "")).weights
    job = given.source.generate(given.system, check=given.check, weights=weights)
    found = predict_serving(job, given.system, **options)
    for note in found.simulated.notes if options else ():
        say(f"note: {note}")
    return found.summary()


def readable_times(numbers: dict[str, Any]) -> dict[str, Any]:
    """What a reader wants to see first."""
    names = {"ttft_ns": "first token", "tpot_ns": "each further token", "latency_ns": "whole response"}
    times = {
        name: ", ".join(f"{k} {format_time(round(v))}" for k, v in numbers[key].items())
        for key, name in names.items()
        if key in numbers
    }
    return {
        "all requests": format_time(numbers["makespan_ns"]),
        **times,
        "tokens/s": round(numbers["tokens_per_s"], 1),
        "tokens/s per GPU": round(numbers["tokens_per_s_per_gpu"], 1),
        "passes": numbers["passes"],
        "peak memory": format_bytes(numbers["memory_peak_bytes"]),
    }
