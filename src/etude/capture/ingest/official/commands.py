"""What the official linker and converter are asked: their flags, declared once."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from etude.base.figures import figure, switch

LOG: Final = "file that messages are written to as well"


class LogLevel(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"

    @classmethod
    def _missing_(cls, value: object) -> "LogLevel | None":
        return next((one for one in cls if one.value == str(value).upper()), None)


@dataclass(frozen=True, kw_only=True)
class TraceLink:
    """Host and device trace of a rank in one JSON, as `chakra_trace_link` writes it

    etude chakra trace_link --rank 0 --chakra-host-trace host.json --chakra-device-trace kineto.json \\
    --output-file linked.json

    `etude link` builds a better graph from the same files in one step: with the order of streams and with waits.
    """

    rank: int = figure("count", "rank of the two traces, for messages", zero=True)
    host: str = figure(
        "path", "the host trace that ExecutionTraceObserver wrote; it may be compressed", key="chakra_host_trace"
    )
    device: str = figure("path", "the device trace that the profiler (Kineto) wrote", key="chakra_device_trace")
    out: str = figure("out", "the linked JSON to write. An existing file is replaced", key="output_file")
    log_level: LogLevel = figure(
        "choice", "least level of the messages; what was written is of level INFO", LogLevel.INFO
    )


@dataclass(frozen=True, kw_only=True)
class ConvertPyTorch:
    """A linked JSON, or a host trace alone, as `.et`

    etude chakra converter PyTorch --input linked.json --output rank.0.et
    """

    source: str = figure("path", "the file that `trace_link` wrote, or a host trace alone", key="input")
    out: str = figure("out", "the `.et` file to write. An existing file is replaced", key="output")
    simulate: bool = switch("also write when each node is issued and completed, to the log")
    log: str | None = figure(
        "out",
        "log: messages, or with --simulate when each node runs (by default `debug.log`)",
        None,
        key="log_filename",
    )


@dataclass(frozen=True, kw_only=True)
class ConvertText:
    """An ASTRA-sim text workload as one `.et` file per rank

    etude chakra converter Text --input resnet.txt --output resnet --num-npus 4 --num-passes 2
    """

    source: str = figure("path", "ASTRA-sim's text workload", key="input")
    out: str = figure("out", "files are `OUTPUT.{rank}.et`. An existing file is replaced", key="output")
    num_npus: int = figure("count", "number of ranks; all run the same layers", like="8")
    num_passes: int = figure("count", "passes over the layers", like="3")
    log: str | None = figure("out", LOG, None, key="log_filename")
