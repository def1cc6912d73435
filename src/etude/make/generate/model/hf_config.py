"""The keys of a Hugging Face `config.json`, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from etude.base.errors import UsageError

Given = dict[str, Any]


class UnmappedConfigError(UsageError):
    """A config of a model that Etude has no blocks for."""


@dataclass(frozen=True, slots=True)
class HfConfig:
    """The keys of a file, and what is wrong with them."""

    keys: Mapping[str, Any]
    where: str

    @property
    def kind(self) -> str:
        """`model_type`, or of a network of Diffusers its class, which may have a `model_type` of its own."""
        return str(self.keys.get("_class_name") or self.keys.get("model_type", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key; `null` counts as missing."""
        value = self.keys.get(key)
        return default if value is None else value

    def __getitem__(self, key: str) -> int:
        """A required count."""
        value = self.get(key)
        if value is None:
            raise UsageError(f"key `{key}` is missing", where=self.where, hint=f"a `{self.kind}` config has it")
        if not isinstance(value, int) or value < 1:
            raise UsageError(f"`{key}` {value}: expected a number above 0", where=self.where)
        return value

    def inside(self, key: str) -> HfConfig:
        return HfConfig(self.get(key, {}), f"{self.where}: {key}")

    def without(self, *keys: str) -> HfConfig:
        """The same without keys that their reader has handled itself."""
        return HfConfig({k: v for k, v in self.keys.items() if k not in keys}, self.where)

    def refuse(self, key: str, why: str, hint: str = "") -> UnmappedConfigError:
        shown = str(self.keys.get(key))
        shown = shown if len(shown) < 60 else shown[:57] + "..."
        return UnmappedConfigError(f"`{key}` {shown}: {why}", where=self.where, hint=hint)

    def only(self, key: str, *allowed: Any) -> None:
        """A key that changes the shape in ways that are not supported."""
        if self.get(key, allowed[0]) not in allowed:
            raise self.refuse(key, "this shape is not supported", hint=f"supported: {', '.join(map(str, allowed))}")
