"""A critic that learns twice before its maker does, or a program with an optimizer that is never used."""

import sys

import torch

critic, maker = torch.nn.Linear(8, 1), torch.nn.Linear(4, 8)
judges = torch.optim.SGD(critic.parameters(), lr=0.1)
makes = torch.optim.SGD(maker.parameters(), lr=0.1)
for _ in range(40):
    for _ in range(2):
        judges.zero_grad()
        critic(maker(torch.ones(3, 4)).detach()).square().mean().backward()
        judges.step()
    if sys.argv[1] == "critic":
        critic(maker(torch.ones(3, 4))).exp().mean().backward()
        makes.step()
        makes.zero_grad()
