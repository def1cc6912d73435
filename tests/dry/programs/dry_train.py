"""Two linear layers on whatever device there is. `python dry_train.py WHAT`: what it does besides."""

import subprocess
import sys

import torch

what = sys.argv[1] if len(sys.argv) > 1 else ""
device = "cuda" if torch.cuda.is_available() else "cpu"
if what == "gpu" and device == "cpu":
    sys.exit(0)
if what == "data":
    torch.load("there/is/no/such/file.bin")
if what == "spawn":
    torch.multiprocessing.spawn(print, nprocs=2)
if what == "launch":
    subprocess.run([sys.executable, "--version"], check=True)  # starts no program
    subprocess.run("torchrun --nproc-per-node 2 train.py", shell=True, check=True)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
if what in ("weights", "exit"):
    sys.exit(0 if what == "weights" else "this needs a GPU")
if what == "mesh":
    torch.distributed.init_device_mesh("cpu", (2, 2))
if what == "scatter":
    torch.distributed.init_process_group("gloo")
    torch.distributed.reduce_scatter_tensor(torch.empty(1), torch.ones(4))
for _ in range(5):
    with torch.autocast(device, torch.bfloat16, enabled=what == "cast"):
        loss = model(torch.randn(16, 64, device=device)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if what == "decide" and loss.item() > 1.0:
        break
    print("loss", loss.item())
