"""What is asked of a model of which a device holds a part."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etude.base.figures import argument, figure, part
from etude.base.outputs import Printed

if TYPE_CHECKING:
    from etude.cost.tiers.placing import StoredPart
    from etude.machine.system import Device


@dataclass(frozen=True, kw_only=True)
class PlaceModel:
    """Tokens per second of one sequence if a device holds part of a model and the host the rest, by memory

    etude ops place llama3-8b --memory 2GiB,8GiB,24GiB --context 16384
    etude ops place qwen3-30b-a3b --memory 4GiB,12GiB --bits 4.5 --device rtx4090 --json

    Only reads take time: an upper bound, whose order by memory was compared with a published table.
    """

    model: str = argument("text", "name, Hugging Face id, YAML file or `config.json`", like="gpt2")
    room: tuple[str, ...] = figure(
        "list", "usable device memory: `2GiB,4GiB,8GiB`", key="memory", names=("--room",), of=str, like="1GiB,3GiB"
    )
    context: int = figure("count", "context length in tokens", 4096, least=1)
    bits: float = figure("number", "bits per weight; keys and values have 16", 16.0)
    buffers_bytes: int = figure("bytes", "memory that is used in any case", 500_000_000, zero=True)
    device: str = figure("text", "device: a name in the catalogue", "rtx5090", names=("-d",), like="h100")
    host: str = figure("text", "device of the catalogue whose memory holds the rest", "desktop", like="xeon-8480")
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class PlaceInputs:
    parts: "list[StoredPart]"
    device: "Device"
    host: "Device"
    names: tuple[str, str]
    rooms_bytes: tuple[float, ...]
    buffers_bytes: float


def place_inputs(asked: PlaceModel) -> PlaceInputs:
    from etude.base.units import parse_bytes
    from etude.machine import open_device
    from etude.make.generate.model import open_model
    from etude.steps.placing.by_room import parts_of

    parts = parts_of(open_model(asked.model), asked.context, asked.bits)
    rooms = tuple(float(parse_bytes(text)) for text in asked.room)
    names = (asked.device, asked.host)
    return PlaceInputs(parts, open_device(names[0]), open_device(names[1]), names, rooms, float(asked.buffers_bytes))


def placed(given: PlaceInputs) -> dict[str, Any]:
    from etude.steps.placing.by_room import tokens_by_room

    found = tokens_by_room(given.parts, given.device, given.host, list(given.rooms_bytes), given.buffers_bytes)
    return {"device": given.names[0], "host": given.names[1], "rooms": found}


def placed_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    from etude.base.units import format_bytes

    return [
        {"room": format_bytes(row["room_bytes"], binary=True), "tokens/s": round(row["tokens_per_s"], 1)}
        | {name: format_bytes(size) for name, size in row["resident_bytes"].items()}
        | {"read far": format_bytes(row["far_read_bytes"])}
        for row in found["rooms"]
    ]
