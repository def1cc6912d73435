"""Two ranks that talk, and processes that are no ranks and call a module too: a helper, and the parent of all.

Ranks are forked and have no RANK in their environment; each destroys its groups before it ends.
"""

import multiprocessing
import os
import socket

import torch
import torch._inductor  # what a profiler imports: once, before processes are forked
import torch.distributed as dist
from torch.distributed import destroy_process_group

torch.set_num_threads(1)


def rank(number: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=number, world_size=2)
    pair = dist.new_group([0, 1], group_desc="pair")
    model = torch.nn.Linear(4, 4)
    value = model(torch.ones(2, 4)).detach()
    dist.all_reduce(value, group=pair)
    if number == 0:
        dist.send(value, 1)
    else:
        dist.recv(value, 0)
    destroy_process_group()


def other() -> None:
    torch.nn.Linear(4, 4)(torch.ones(2, 4))


def main() -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    make = multiprocessing.get_context("fork").Process
    started = [make(target=rank, args=(number, port)) for number in range(2)]
    started.append(make(target=other, name="helper"))
    for process in started:
        process.start()
    for process in started:
        process.join()
    other()
    print("ended", [process.exitcode for process in started], flush=True)


if __name__ == "__main__":
    main()
