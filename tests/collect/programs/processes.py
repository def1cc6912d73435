"""Two ranks that talk, and processes that are no ranks: `processes.py`, under `etude collect --whole` or not.

Ranks are spawned and have no RANK in their environment; each destroys its groups before it ends. Beside them
two processes of another kind call a module too.
"""

import multiprocessing
import os
import socket

import torch
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
    make = multiprocessing.get_context("spawn").Process
    started = [make(target=rank, args=(number, port)) for number in range(2)]
    started += [make(target=other, name=f"helper-{number}") for number in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    print("ended", [process.exitcode for process in started], flush=True)


if __name__ == "__main__":
    main()
