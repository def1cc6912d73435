"""The module that a driver trains: what a function of a file returns, or a model of transformers from its config."""

import importlib.util
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from etude.capture.dry.assumptions import state
from etude.capture.dry.driven.request import DrivenProgram
from etude.capture.dry.fakes import with_numbers
from etude.capture.dry.problems import DrivenError

INSTALL = "pip install transformers"


def built_model(torch: Any, asked: DrivenProgram) -> Any:
    """A module whose weights have no storage yet. What it computes on the host while it is built has numbers."""
    with with_numbers(torch)(), torch.device("meta"):
        model = config_model(torch, asked) if asked.hf else file_model(torch, asked.program)
        model = model.to(torch.bfloat16) if asked.weights == "bf16" else model
    if not any(weight.requires_grad for weight in model.parameters()):
        raise DrivenError("the model has no weight that is trained", where=asked.program or asked.hf)
    return model


def file_model(torch: Any, program: str) -> Any:
    """What `FILE.py:NAME` names: a module, or what it returns when it is called."""
    file, _, name = program.rpartition(":")
    path = Path(file).resolve()
    if not path.is_file():
        raise DrivenError(f"there is no file `{file}`", where="--program")
    sys.path.insert(0, str(path.parent))
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if found is None:
        own = [one for one, value in vars(module).items() if callable(value) and _is_own(value, module)]
        hint = f"it has {', '.join(own)}" if own else "it has no function"
        raise DrivenError(f"`{file}` has no `{name}`", where="--program", hint=hint)
    model = found if isinstance(found, torch.nn.Module) else _call(found, program)
    if not isinstance(model, torch.nn.Module):
        hint = "a function or class that returns a torch.nn.Module when it is called without arguments"
        raise DrivenError(f"`{name}()` returns {type(model).__name__}, not a module", where=program, hint=hint)
    return model


def _is_own(value: Any, module: Any) -> bool:
    return getattr(value, "__module__", "") == module.__name__


def _call(found: Any, program: str) -> Any:
    name = program.rpartition(":")[2]
    if not callable(found):
        raise DrivenError(f"`{name}` is of the type {type(found).__name__}, and no function", where=program)
    try:
        import_module("inspect").signature(found).bind()
    except TypeError as problem:
        hint = f"write a function that calls it: def build(): return {name}(...)"
        raise DrivenError(f"`{name}` cannot be called without arguments: {problem}", where=program, hint=hint) from None
    except ValueError:
        pass  # a callable without a signature
    return found()


def config_model(torch: Any, asked: DrivenProgram) -> Any:
    """The class that a config names as its architecture, or the language model of its type."""
    os.environ |= {"HF_HUB_OFFLINE": "1"}
    try:
        transformers: Any = import_module("transformers")
    except ImportError as problem:
        raise DrivenError(f"`{asked.hf}` needs transformers: {problem}", hint=INSTALL) from None
    named = json.loads(Path(asked.hf).read_text()).get("architectures") or []
    try:
        config = transformers.AutoConfig.from_pretrained(asked.hf)
        config.use_cache = False
        kind = next((found for one in named if (found := getattr(transformers, str(one), None))), None)
        make = kind._from_config if kind is not None else transformers.AutoModelForCausalLM.from_config
        more = {"attn_implementation": asked.attention} if asked.attention else {}
        model = make(config, dtype=torch.float32, **more)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, ImportError) as problem:
        text = " ".join(str(problem).split())[:400]
        raise DrivenError(
            f"transformers {transformers.__version__} makes no model of it: {text}",
            where=asked.hf,
            hint="`etude collect --dry` takes a script that builds the model itself",
        ) from problem
    state(f"`{type(model).__name__}` of transformers {transformers.__version__}, which keeps no cache of keys")
    return model
