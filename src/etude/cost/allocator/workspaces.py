"""Memory that libraries take beside tensors: figures of their defaults, and assumptions where there is none.

Matrix products: PyTorch gives each pair of a cuBLAS handle and a stream one workspace, through the caching allocator,
when it first multiplies on it, and keeps it. A handle belongs to a thread: a program that trains on one stream has two,
of its own thread and of autograd's. Sizes are of PyTorch's `CublasHandlePool.cpp`: 32 MiB on Hopper and Blackwell,
128 MiB on AMD's MI300 and later and 32 MiB before, otherwise `:4096:2:16:8`. Products with a bias use cuBLASLt, which
has 1 MiB of its own where `TORCH_CUBLASLT_UNIFIED_WORKSPACE` is not on (it is by default in PyTorch 2.13). 24 programs
on an H200 with PyTorch 2.11 allocated 33,554,432 bytes twice (19 that train), once (4 that do not) or never (one that
only convolves), and 1,048,576 bytes where they have biases.

NCCL: a receiver has a buffer of each protocol for each channel and connection, outside the allocator. Sizes are of
NCCL's `init.cc` and `device.h`: Simple 4 MiB, LL 8 lines x 512 threads x 8 steps x 16 bytes, LL128 120 elements x 640
threads x 8 steps x 8 bytes. Channels and connections are assumptions, which were not measured: 24 channels, as NCCL
says of eight H100, and two connections, of a ring and of a tree.

Workspaces of convolutions depend on what cuDNN chooses, and are not among these.
"""

from __future__ import annotations

import re
from typing import Final

from etude.base.errors import UsageError

MIB: Final = 1 << 20
TRAINING_THREADS: Final = 2
"""Threads that multiply: the program's own and autograd's."""
CONTEXT_BYTES: Final = 500 * MIB
"""CUDA's context and the code of kernels; an assumption: it depends on the driver and on what is loaded."""
NCCL_BUFFERS_BYTES: Final = 4 * MIB + 8 * 512 * 8 * 16 + 120 * 640 * 8 * 8
"""Of one connection on one channel."""
NCCL_CHANNELS: Final = 24
NCCL_CONNECTIONS: Final = 2

_32_MIB: Final = re.compile(r"(?<![a-z0-9])(gh200|h100|h200|h800|h20|g?b[123]00|mi[12]\d\d\w*)(?![a-z0-9])")
_128_MIB: Final = re.compile(r"(?<![a-z0-9])mi3\d\d\w*")


def cublas_workspace_bytes(device: str, config: str = "") -> int:
    """One workspace on a device of this name (`h100`, `NVIDIA A100 SXM4 80GB`); `config`: as in
    `CUBLAS_WORKSPACE_CONFIG`, `:KiB:count` once or several times."""
    if config:
        if not re.fullmatch(r"(:\d+:\d+)+", config):
            raise UsageError(f"`{config}`", where="CUBLAS_WORKSPACE_CONFIG", hint="as in :4096:2:16:8")
        numbers = [int(text) for text in config[1:].split(":")]
        return 1024 * sum(size * count for size, count in zip(numbers[::2], numbers[1::2], strict=True))
    if _128_MIB.search(device.lower()):
        return 128 * MIB
    if _32_MIB.search(device.lower()):
        return 32 * MIB
    return 1024 * (4096 * 2 + 16 * 8)


def nccl_buffer_bytes(ranks: int, channels: int = NCCL_CHANNELS, connections: int = NCCL_CONNECTIONS) -> int:
    """Buffers of one communicator on each of its ranks; one rank alone has none."""
    return channels * connections * NCCL_BUFFERS_BYTES if ranks > 1 else 0
