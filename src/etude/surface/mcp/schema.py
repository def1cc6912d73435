"""The JSON schema of a tool, from the declaration of its verb."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from etude.base.parameters import VerbParameter, parameters_of
from etude.surface.verb import Verb

NOT_OFFERED: Final = frozenset({"force", "trust", "workers", "ray"})
"""Parameters that are not for assistants: they replace files, run code, or are a matter of the machine."""
_TYPES: Final[dict[str, dict[str, Any]]] = {
    "count": {"type": "integer"}, "number": {"type": "number"}, "power": {"type": "number"},
    "fraction": {"type": "number", "maximum": 1}, "switch": {"type": "boolean"}, "flag": {"type": "boolean"},
    "time": {"type": ["string", "number"], "examples": ["20ms"]},
    "bytes": {"type": ["string", "integer"], "examples": ["80GB"]},
    "bandwidth": {"type": ["string", "number"], "examples": ["450GB/s"]},
    "rate": {"type": ["string", "number"], "examples": ["989T"]},
    "several": {"type": "array", "items": {"type": "string"}},
    "paths": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    "one": {"type": "object"}, "texts": {"type": ["string", "object"]},
}  # fmt: skip
"""Kind -> its type; a text for the others."""


def offered(verb: Verb[Any, Any, Any], writes: bool) -> Iterator[VerbParameter]:
    """Parameters that an assistant may give. Where nothing is written, none names a place to write."""
    for name, p in parameters_of(verb.asks).items():
        hidden = name in NOT_OFFERED or p.part == "output" or p.about.get("local")
        if not hidden and (writes or p.kind != "out"):
            yield p


def is_written(verb: Verb[Any, Any, Any]) -> bool:
    """Whether the verb always writes what it is called for."""
    return any(p.kind == "out" and needed(p) for p in parameters_of(verb.asks).values())


def needed(p: VerbParameter) -> bool:
    """Whether an assistant has to give it; a place to write has no default on a server."""
    return p.is_required or (p.kind == "out" and p.default is not None)


def schema(verb: Verb[Any, Any, Any], writes: bool) -> dict[str, Any]:
    """What may be given: types, values and ranges; nothing else is allowed."""
    known = sorted(offered(verb, writes), key=lambda p: not p.is_argument)
    return {
        "type": "object",
        "properties": {p.name: _property(p, verb.tool_defaults) for p in known},
        "required": [p.name for p in known if needed(p)],
        "additionalProperties": False,
    }


def _property(p: VerbParameter, defaults: Mapping[str, Any]) -> dict[str, Any]:
    about = p.about
    made = dict(_TYPES.get(p.kind, {"type": "string"}))
    if p.kind == "choice":
        made["enum"] = [one.value for one in about["of"] if one.value]
    elif p.kind == "list":
        item = "integer" if about["of"] is int else "string"
        made = {"type": ["array", "string"], "items": {"type": item}}
    elif p.kind.startswith("map of "):
        made = {"type": "object"}
    elif p.name == "plan" and p.kind == "path":
        made = {"type": ["object", "string"]}
    if made.get("type") in ("integer", "number"):
        made |= _range(p)
    made["description"] = str(about["doc"]) + (f"; only with {about['needs']}" if about.get("needs") else "")
    default = defaults.get(p.name, p.default)
    if isinstance(default, bool | int | float | str) and default != "" and not needed(p):
        made["default"] = getattr(default, "value", default)
    return made


def _range(p: VerbParameter) -> dict[str, Any]:
    least, most = p.about.get("least"), p.about.get("most")
    whole = p.kind == "count"
    low = least if least is not None else 0 if p.about["zero"] else 1 if whole else None
    found = {"exclusiveMinimum": 0} if low is None else {"minimum": low}
    return found | ({} if most is None else {"maximum": most})
