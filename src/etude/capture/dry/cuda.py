"""Stands for `torch.cuda` where there is none: one device for each local rank, with streams and events that only say
what waits for what."""

import contextlib
import operator
import types
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from etude.capture.dry.cuda_kernels import choose_kernels
from etude.capture.dry.cuda_recurrent import recurrent_on_cuda
from etude.capture.dry.watch import Watch


@dataclass(frozen=True, slots=True)
class DryDevice:
    """The device that a program finds."""

    name: str
    memory_bytes: int
    units: int
    capability: tuple[int, int] = (9, 0)

    @property
    def properties(self) -> Any:
        return types.SimpleNamespace(
            name=self.name,
            major=self.capability[0],
            minor=self.capability[1],
            total_memory=self.memory_bytes,
            multi_processor_count=self.units,
            warp_size=32,
            gcnArchName="",
            uuid="",
            regs_per_multiprocessor=65536,
            max_threads_per_multi_processor=2048,
            shared_memory_per_block=49152,
            shared_memory_per_block_optin=232448,
            shared_memory_per_multiprocessor=233472,
            L2_cache_size=52428800,
            is_integrated=False,
            is_multi_gpu_board=False,
        )


def stand_in(torch: Any, watch: Watch, device: DryDevice, *, local_rank: int, local_world: int) -> None:
    """Replaces what programs ask of `torch.cuda` and `torch.accelerator`."""
    cuda = torch.cuda
    place = {"index": local_rank if local_world > 1 else 0}
    here = lambda given=None: place["index"]  # noqa: E731
    count = max(1, local_world)
    stream_type, event_type, entering = _streams(torch, watch)
    default = stream_type(number=0)
    current = [default]
    nothing = lambda *args, **named: None  # noqa: E731
    zero = lambda *args, **named: 0  # noqa: E731

    def set_device(given: Any) -> None:
        index = given if isinstance(given, int) else torch.device(given).index
        place["index"] = place["index"] if index is None else index

    def set_stream(stream: Any) -> None:
        current[0], watch.stream = stream, stream.number

    replaced = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_compiled": lambda: True,
        "init": nothing,
        "_lazy_init": nothing,
        "_lazy_call": nothing,
        "device_count": lambda: count,
        "current_device": here,
        "set_device": set_device,
        "synchronize": lambda given=None: watch.host_waits("cudaDeviceSynchronize", watch.last_of.values()),
        "empty_cache": nothing,
        "ipc_collect": nothing,
        "get_device_name": lambda given=None: device.name,
        "get_device_capability": lambda given=None: device.capability,
        "get_device_properties": lambda given=None: device.properties,
        "is_bf16_supported": lambda *args, **named: device.capability[0] >= 8,
        "is_tf32_supported": lambda: device.capability[0] >= 8,
        "get_arch_list": list,
        "mem_get_info": lambda given=None: (device.memory_bytes, device.memory_bytes),
        "manual_seed": nothing,
        "manual_seed_all": nothing,
        "seed": nothing,
        "seed_all": nothing,
        "initial_seed": zero,
        "get_rng_state": lambda given=None: torch.zeros(16, dtype=torch.uint8, device="cpu"),
        "set_rng_state": nothing,
        "get_rng_state_all": list,
        "set_rng_state_all": nothing,
        "Stream": stream_type,
        "Event": event_type,
        "ExternalStream": stream_type,
        "current_stream": lambda given=None: current[0],
        "default_stream": lambda given=None: default,
        "set_stream": set_stream,
        "stream": lambda given: entering(given, current, set_stream),
        "StreamContext": lambda given: entering(given, current, set_stream),
        "device": _device_of(set_device, place),
        "_DeviceGuard": _device_of(set_device, place),
        "_exchange_device": zero,
        "_maybe_exchange_device": zero,
        "can_device_access_peer": lambda *args: True,
        "is_current_stream_capturing": lambda: False,
        "utilization": zero,
        "cudart": nothing,
        "reset_peak_memory_stats": nothing,
        "reset_max_memory_allocated": nothing,
        "memory_stats": lambda *a, **k: {},
        "memory_allocated": zero,
        "max_memory_allocated": zero,
        "memory_reserved": zero,
        "max_memory_reserved": zero,
        "memory_summary": lambda *args, **named: "",
        "set_per_process_memory_fraction": nothing,
    }
    for name, value in replaced.items():
        setattr(cuda, name, value)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(cuda.memory, name, zero)
    torch.version.cuda = torch.version.cuda or "12.8"
    torch._C._cuda_isCurrentStreamCapturing = lambda: False
    torch._C._cuda_getCurrentRawStream = zero
    torch._C._cuda_getDevice = here
    torch._C._get_accelerator = lambda *args: torch.device("cuda")
    torch._C._cuda_setDevice = set_device
    torch.Stream, torch.Event = stream_type, event_type
    _accelerator(torch, replaced, here, set_device)
    _devices_of_wrappers()
    choose_kernels(torch, device.capability)
    recurrent_on_cuda(torch)
    torch.Tensor.record_stream = lambda tensor, stream: None
    torch.Tensor.pin_memory = lambda tensor, *args, **named: tensor


def _devices_of_wrappers() -> None:
    """Tensors around others are where these are; they would ask C++, which takes a fake one to be on the host."""
    inner = {
        "torch.distributed.tensor": ("DTensor", "_local_tensor"),
        "torch.distributed._functional_collectives": ("AsyncCollectiveTensor", "elem"),
    }
    for module, (name, held) in inner.items():
        with contextlib.suppress(ImportError):
            wrapper = getattr(import_module(module), name)
            inside = operator.attrgetter(f"{held}.device"), operator.attrgetter(f"{held}.is_cuda")
            wrapper.device, wrapper.is_cuda = map(property, inside)


def _accelerator(torch: Any, cuda: dict[str, Any], here: Any, set_device: Any) -> None:
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:
        return
    accelerator.is_available = lambda: True
    accelerator.device_count = cuda["device_count"]
    accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
    accelerator.current_device_index = here
    accelerator.set_device_index = set_device
    accelerator.synchronize = cuda["synchronize"]
    accelerator.current_stream = cuda["current_stream"]


def _device_of(set_device: Any, place: dict[str, int]) -> Any:
    class device:  # noqa: N801 - stands for torch.cuda.device
        def __init__(self, given: Any = None) -> None:
            self._given, self._before = given, 0

        def __enter__(self) -> None:
            self._before = place["index"]
            if self._given is not None:
                set_device(self._given)

        def __exit__(self, *_: Any) -> None:
            place["index"] = self._before

    return device


def _streams(torch: Any, watch: Watch) -> tuple[Any, Any, Any]:
    """(The class of streams, that of events, the context that enters a stream.)"""
    count = [0]

    class Event:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.row = -1

        def record(self, stream: Any = None) -> None:
            self.row = watch.last_of.get(watch.stream if stream is None else stream.number, -1)

        def wait(self, stream: Any = None) -> None:
            watch.wait(self.row, None if stream is None else stream.number)

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            watch.host_waits("cudaEventSynchronize", [self.row])

        def elapsed_time(self, other: Any) -> float:
            return float("nan")

    class Stream:
        def __init__(self, *_: Any, number: int | None = None, **__: Any) -> None:
            if number is None:
                count[0] += 1
            self.number = count[0] if number is None else number
            self.stream_id = self.cuda_stream = self.number
            self.device = torch.device("cuda", torch.cuda.current_device() if number is None else 0)
            self.device_index, self.device_type, self.priority = 0, 1, 0

        def wait_stream(self, other: Any) -> None:
            watch.wait(watch.last_of.get(other.number, -1), self.number)

        def wait_event(self, event: Any) -> None:
            watch.wait(event.row, self.number)

        def record_event(self, event: Any = None) -> Any:
            made = event or Event()
            made.record(self)
            return made

        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            watch.host_waits("cudaStreamSynchronize", [watch.last_of.get(self.number, -1)])

        def is_capturing(self) -> bool:
            return False

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and other.number == self.number

        def __hash__(self) -> int:
            return hash(self.number)

        def __enter__(self) -> Any:
            self._inside = torch.cuda.stream(self)
            return self._inside.__enter__()

        def __exit__(self, *problem: Any) -> None:
            self._inside.__exit__(*problem)

    class Entering:
        def __init__(self, stream: Any, current: list[Any], set_stream: Any) -> None:
            self._stream, self._current, self._set, self._before = stream, current, set_stream, None

        def __enter__(self) -> Any:
            self._before = self._current[0]
            if self._stream is not None:
                self._set(self._stream)
            return self._stream

        def __exit__(self, *_: Any) -> None:
            self._set(self._before)

    return Stream, Event, Entering
