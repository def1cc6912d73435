"""A model as a program names it: `FILE.py:NAME`, which returns a module, or a `config.json` of transformers."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from etude.capture.dry.driven import file_model
from etude.capture.dry.problems import DrivenError

DTYPE = "bfloat16"
"""Of weights, where a config does not say."""
HINT = "FILE.py:NAME, a function that returns a module, or a config.json of transformers"


class NoModelError(Exception):
    """There is no such model; `hint` says what would be one."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.hint = hint


def check_spec(spec: str) -> tuple[Path, str]:
    """(File, name of the function or nothing.) Raises NoModelError for what is neither form, and for a missing file."""
    path, colon, name = spec.rpartition(":")
    if not colon or not path.endswith(".py"):
        path, name = spec, ""
    if not path.endswith(".json" if not name else ".py"):
        raise NoModelError(f"`{spec}` does not name a model", HINT)
    if not Path(path).is_file():
        raise NoModelError(f"there is no file {path}")
    return Path(path), name


def load_model(spec: str) -> Any:
    """The module, made with PyTorch's current default device."""
    path, name = check_spec(spec)
    return _built(path, name) if name else _causal_model(path)


def _built(path: Path, name: str) -> Any:
    try:
        return file_model(import_module("torch"), f"{path}:{name}")
    except DrivenError as problem:
        raise NoModelError(problem.problem, problem.hint) from problem


def _causal_model(path: Path) -> Any:
    """The causal language model of a config; its code is that of the installed transformers."""
    try:
        given = json.loads(path.read_text())
    except ValueError as problem:
        raise NoModelError(f"{path} is not JSON: {problem}") from None
    kind = given.get("model_type", "") if isinstance(given, dict) else ""
    if not kind:
        raise NoModelError(f"{path} has no `model_type`, so it is not a config of transformers", HINT)
    try:
        transformers: Any = import_module("transformers")
    except ImportError:
        raise NoModelError(f"{path} needs transformers, which is not installed", "pip install transformers") from None
    known = transformers.CONFIG_MAPPING
    if kind not in known:
        raise NoModelError(f"transformers {transformers.__version__} has no model of the type `{kind}`")
    config = known[kind].from_dict(given)
    auto = transformers.AutoModelForCausalLM
    if type(config) not in auto._model_mapping:
        raise NoModelError(f"`{kind}` is not a causal language model in transformers {transformers.__version__}")
    torch: Any = import_module("torch")
    text = str(given.get("dtype") or given.get("torch_dtype") or DTYPE).removeprefix("torch.")
    dtype = getattr(torch, text, None)
    if dtype is None:
        raise NoModelError(f"{path}: PyTorch has no type `{text}`")
    return auto.from_config(config, dtype=dtype)
