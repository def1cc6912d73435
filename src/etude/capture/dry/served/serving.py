"""Prefill and decode of a causal language model as the program of a dry run.

`python -m etude.capture.dry.served.serving FACTS SPEC` makes the model of SPEC and calls it as
`model(input_ids=..., past_key_values=..., use_cache=True)` over a grid of passes. Each is a step of its own; what fills
a cache for it is in the step before. FACTS is a JSON file that says which step is which pass, and how large weights and
caches are, or why there is no answer.
"""

import contextlib
import copy
import inspect
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from etude.capture.dry.marks import end_step
from etude.capture.dry.served.grid import PassPoint, contexts_within, grid_points
from etude.capture.dry.served.load_model import NoModelError, load_model

REFUSED = 3
"""Exit code of a model that cannot be served."""
DEPTH = 8
"""How deep tensors are looked for in a cache."""
CACHES = ("past_key_values", "cache_params")
"""Names of the cache in what a model returns."""


class CachedModel:
    """A causal language model, and what was seen of it."""

    def __init__(self, torch: Any, model: Any) -> None:
        self._torch = torch
        self.config = getattr(model, "config", None)
        names = inspect.signature(model.forward).parameters
        self.leaves_out_logits = "logits_to_keep" in names
        self._cache_name = next((n for n in CACHES if n in names), CACHES[0])
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in names.values())
        if not takes_any and not {self._cache_name, "use_cache"} <= set(names):
            raise NoModelError(
                f"the model has no cache: its forward takes {', '.join(names) or 'nothing'}",
                "a causal language model is called as model(input_ids=..., past_key_values=..., use_cache=True)",
            )
        self._model = model.to("cuda").eval()
        self.step = 0
        self.passes: list[dict[str, int]] = []
        self.cache_bytes: list[tuple[int, int, int]] = []
        self.cache_class = ""
        self.vocabulary = 0

    def run(self, positions: int) -> None:
        """All passes of the grid."""
        kept: dict[int, Any] = {}
        contexts = contexts_within(positions)
        for point in grid_points(positions, logits=self.leaves_out_logits):
            cache = self._filled(kept[point.past], point) if point.past else None
            made = self._pass(point, cache)
            if point.batch == 1 and not point.past and point.tokens in contexts:
                kept[point.tokens] = made

    def _pass(self, point: PassPoint, cache: Any) -> Any:
        """One pass as a step of its own; the cache after it."""
        given = self._torch.zeros((point.batch, point.tokens), dtype=self._torch.int64, device="cuda")
        self._end_step()
        out = self._call(given, cache, point.logits)
        self.passes.append(
            {
                "batch": point.batch,
                "tokens": point.tokens,
                "past": point.past,
                "logits": point.logits,
                "step": self.step,
            }
        )
        self._end_step()
        made = self._cache_of(out)
        self.vocabulary = self._vocabulary(out)
        held = point.past + point.tokens
        self.cache_bytes.append((point.batch, held, _held_bytes(made, self._torch.Tensor)))
        return made

    def _call(self, given: Any, cache: Any, logits: int) -> Any:
        named: dict[str, Any] = {"input_ids": given, self._cache_name: cache, "use_cache": True}
        if self.leaves_out_logits:
            named["logits_to_keep"] = logits
        return self._model(**named)

    def _filled(self, kept: Any, point: PassPoint) -> Any:
        """A cache that a pass may change: a copy of one sequence's, for as many as are asked."""
        if point.batch == 1:
            return _copied(kept, self._torch.Tensor)
        with contextlib.suppress(AttributeError, NotImplementedError):  # not every layer of every cache has it
            made = _copied(kept, self._torch.Tensor)
            made.batch_repeat_interleave(point.batch)
            return made
        given = self._torch.zeros((point.batch, point.past), dtype=self._torch.int64, device="cuda")
        return self._cache_of(self._call(given, None, 1))

    def _cache_of(self, out: Any) -> Any:
        made = next((found for name in CACHES if (found := _field(out, name)) is not None), None)
        if made is None and isinstance(out, tuple) and len(out) > 1:
            made = out[1]
        if made is None or not _held_bytes(made, self._torch.Tensor):
            raise NoModelError(
                f"the model has no cache: {type(self._model).__name__} returns no past_key_values",
                "a causal language model returns them with use_cache=True",
            )
        self.cache_class = type(made).__name__
        return made

    def _vocabulary(self, out: Any) -> int:
        logits = _field(out, "logits")
        if logits is None and isinstance(out, tuple):
            logits = out[0]
        return int(logits.shape[-1]) if isinstance(logits, self._torch.Tensor) else 0

    def _end_step(self) -> None:
        end_step()
        self.step += 1

    def facts(self) -> dict[str, Any]:
        weights = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in self._weights()}
        config = self.config
        return {
            "passes": self.passes,
            "weights_bytes": sum(weights.values()),
            "cache_bytes": self.cache_bytes,
            "cache_class": self.cache_class,
            "leaves_out_logits": self.leaves_out_logits,
            "vocabulary": self.vocabulary,
            "model_class": type(self._model).__name__,
            "attention": str(getattr(config, "_attn_implementation", "") or ""),
            "layers": int(getattr(config, "num_hidden_layers", 0) or 0),
            "dtype": str(next(iter(self._weights())).dtype).removeprefix("torch."),
            "quantised": bool(getattr(config, "quantization_config", None)),
        }

    def _weights(self) -> list[Any]:
        found = [*self._model.parameters(), *self._model.buffers()]
        if not found:
            raise NoModelError(f"the model has no weights: {type(self._model).__name__}")
        return [getattr(one, "_local_tensor", one) for one in found]


def _field(out: Any, name: str) -> Any:
    return out.get(name) if isinstance(out, dict) else getattr(out, name, None)


def _tensors_of(made: Any, tensor: Any) -> list[Any]:
    """All tensors in an object, each once."""
    found: dict[int, Any] = {}
    seen: set[int] = set()

    def look(value: Any, depth: int) -> None:
        if id(value) in seen or depth > DEPTH:
            return
        seen.add(id(value))
        if isinstance(value, tensor):
            found[id(value)] = value
            return
        inside = list(value.values()) if isinstance(value, dict) else list(value) if _is_list(value) else []
        for item in [*inside, *(vars(value).values() if hasattr(value, "__dict__") else ())]:
            look(item, depth + 1)

    look(made, 0)
    return list(found.values())


def _held_bytes(made: Any, tensor: Any) -> int:
    """Bytes of an object's tensors, by their shapes: what else is in their storages is not the cache's."""
    return sum(one.numel() * one.element_size() for one in _tensors_of(made, tensor))


def _copied(made: Any, tensor: Any) -> Any:
    """A copy with tensors of its own. Tensors without numbers cannot be copied by `copy`, which looks at their data."""
    return copy.deepcopy(made, {id(one): one.clone() for one in _tensors_of(made, tensor)})


def _is_list(found: Any) -> bool:
    return isinstance(found, (list, tuple, set))


def _positions(config: Any) -> int:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return int(getattr(text, "max_position_embeddings", 0) or 0)


def main() -> int:
    facts, spec = Path(sys.argv[1]), sys.argv[2]
    torch: Any = import_module("torch")
    try:
        with torch.device("cuda"), torch.no_grad():
            served = CachedModel(torch, load_model(spec))
            served.run(_positions(served.config))
        found = served.facts()
    except NoModelError as problem:
        facts.write_text(json.dumps({"refused": str(problem), "hint": problem.hint}))
        return REFUSED
    facts.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
