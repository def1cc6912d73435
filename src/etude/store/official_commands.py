"""What the official jsonizer and generator are asked: their flags, declared once."""

from dataclasses import dataclass
from typing import Final

from etude.base.figures import figure, switch

OUTPUT: Final = "the file to write. An existing file is replaced"


@dataclass(frozen=True, kw_only=True)
class FromFile:
    """Parameters of what makes one file of another."""

    source: str = figure("path", "the Chakra trace (`.et`) to read", key="input_filename", names=("--input_filename",))
    out: str = figure("out", OUTPUT, key="output_filename", names=("--output_filename",), like="other.dot")


@dataclass(frozen=True, kw_only=True)
class Jsonizer(FromFile):
    """A trace as text: protobuf's JSON of each node, as `chakra_jsonizer` writes it

    etude chakra jsonizer --input_filename rank.0.et --output_filename rank.0.json --valid
    """

    valid: bool = switch("write one JSON list. The official tool writes objects one after another, without commas")


@dataclass(frozen=True, kw_only=True)
class Generator:
    """The 14 sample traces of `chakra_generator` for each NPU, into the current folder

    etude chakra generator --num_npus 2
    """

    num_npus: int = figure("count", "number of NPUs; each sample is one file per NPU", 64, names=("--num_npus",))
    default_runtime: int = figure(
        "count", "duration of compute nodes in microseconds", 5, zero=True, names=("--default_runtime",)
    )
    default_tensor_size: int = figure(
        "count", "size of memory nodes and messages in bytes", 1024, zero=True, names=("--default_tensor_size",)
    )
    default_comm_size: int = figure(
        "count", "size of collectives in bytes", 65536, zero=True, names=("--default_comm_size",)
    )
