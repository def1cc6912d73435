"""Trains a model that is given without a training loop:

    python -m etude.capture.dry.driven.driver --program model.py:build --inputs "tokens=int64[4,8192]" --zero 3

Options are the fields of `DrivenProgram`.

It is the script of a dry run: ranks and devices are as PyTorch says they are.
"""

import contextlib
import inspect
import sys
from importlib import import_module
from typing import Any

from etude.base.errors import UsageError
from etude.capture.dry.assumptions import state
from etude.capture.dry.driven.model import built_model
from etude.capture.dry.driven.plan import distributed_model, optimizer_of, place_of
from etude.capture.dry.driven.request import EXAMPLE, DrivenProgram, InputTensor, input_tensors
from etude.capture.dry.problems import DrivenError

STEPS = 1_000
"""More than a dry run records: it ends the program."""
_REFUSALS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)
LONGEST = 4096
"""Tokens of a sequence where nothing says how many, even if the model has more positions."""


def main(words: list[str]) -> None:
    torch: Any = import_module("torch")
    asked = DrivenProgram.from_words(words)
    model = built_model(torch, asked)
    forward, config = inspect.signature(model.forward), getattr(model, "config", None)
    place = place_of(torch)
    model = distributed_model(torch, model, asked, place)
    model.train()
    positional, named = _inputs(torch, asked, config, place)
    optimizer = optimizer_of(torch, model, asked)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for number in range(asked.accumulate):
            with _unreduced(model, number < asked.accumulate - 1):
                with _precision(torch, asked, place):
                    loss = _loss(torch, _called(torch, model, positional, named, forward))
                (loss / asked.accumulate if asked.accumulate > 1 else loss).backward()
        if asked.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def _inputs(torch: Any, asked: DrivenProgram, config: Any, place: Any) -> tuple[list[Any], dict[str, Any]]:
    """(Arguments by place, by name.)"""
    if asked.inputs:
        try:
            tensors = input_tensors(asked.inputs)
        except UsageError as problem:
            raise DrivenError(problem.problem, where=problem.where, hint=problem.hint) from None
    else:
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        most = getattr(text, "max_position_embeddings", None) or LONGEST
        seq = asked.seq or min(int(most), LONGEST)
        if not asked.seq:
            state(f"sequences of {seq:,} tokens: --seq gives another length")
        tensors = [InputTensor(name, "int64", (asked.micro_batch, seq)) for name in ("input_ids", "labels")]
    made = [torch.zeros(one.shape, dtype=getattr(torch, one.dtype), device=place) for one in tensors]
    pairs = list(zip(tensors, made, strict=True))
    return [value for one, value in pairs if not one.name], {one.name: value for one, value in pairs if one.name}


def _called(torch: Any, model: Any, positional: list[Any], named: dict[str, Any], forward: inspect.Signature) -> Any:
    try:
        forward.bind(*positional, **named)
    except TypeError as problem:
        takes = ", ".join(forward.parameters)
        raise DrivenError(
            f"`forward` does not take these inputs: {problem}",
            where="--inputs",
            hint=f"it takes ({takes}); for example {EXAMPLE}",
        ) from None
    try:
        return model(*positional, **named)
    except _REFUSALS as problem:
        if type(problem).__module__.startswith("torch."):  # questions about numbers, which a dry run says itself
            raise
        shown = ", ".join(f"{name}={_shown(one)}" for name, one in [*enumerate(positional), *named.items()])
        text = " ".join(str(problem).split())[:400]
        raise DrivenError(
            f"the model does not run with {shown}: {type(problem).__name__}: {text}",
            hint="--inputs states names, types and sizes of what `forward` takes",
        ) from problem


def _shown(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(str, tensor.shape))}]"


def _loss(torch: Any, output: Any) -> Any:
    """`output.loss`, or the mean of the first result with a fraction."""
    found = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(found, torch.Tensor) and found.dim() == 0:
        return found
    floats = [one for one in _tensors(torch, output) if one.is_floating_point() and one.requires_grad]
    if not floats:
        raise DrivenError(
            f"`forward` gives {type(output).__name__}, in which nothing can be differentiated",
            hint="it gives a loss (`output.loss`), or a tensor of floats whose mean is taken as one",
        )
    if floats[0].dim():
        state("the loss is the mean of the first result of `forward`")
        return floats[0].float().mean()
    state("the loss is the first result of `forward`")
    return floats[0]


def _tensors(torch: Any, output: Any) -> list[Any]:
    if isinstance(output, torch.Tensor):
        return [output]
    inside = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else ()
    return [tensor for one in inside for tensor in _tensors(torch, one)]


def _precision(torch: Any, asked: DrivenProgram, place: Any) -> Any:
    """Autocast, unless weights are cast as they are gathered, or are in that type."""
    casts = asked.precision == "bf16" and asked.weights == "fp32" and not asked.is_sharded(_world(torch))
    return torch.autocast(place.type, torch.bfloat16) if casts else contextlib.nullcontext()


def _unreduced(model: Any, more: bool) -> Any:
    """Gradients of all micro-batches but the last stay where they are, without sharding."""
    return model.no_sync() if more and hasattr(model, "no_sync") else contextlib.nullcontext()


def _world(torch: Any) -> int:
    dist = torch.distributed
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


if __name__ == "__main__":
    main(sys.argv[1:])
