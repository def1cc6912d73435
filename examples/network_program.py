"""A network for `etude simulate --network "external:python examples/network_program.py [flow]"`.

Etude says on stdin which messages begin and up to when nothing else happens on its side; the answer on stdout is what
arrives first. A line of JSON each way; docs/network.md has the protocol. Two networks: by itself each message has its
links alone; with `flow` all that are on the same link share it max-min fairly.
"""

import json
import math
import sys


class Network:
    """Messages on their way; times in ns, rates in bytes per ns."""

    def __init__(self, links, shared):
        self.rate = [bytes_per_s / 1e9 for _, _, bytes_per_s, _ in links]
        self.latency = [latency_ns for _, _, _, latency_ns in links]
        self.shared, self.now = shared, 0
        self.left, self.links, self.speed, self.drained = {}, {}, {}, {}
        self.since = 0
        self.begins, self.lands = [], {}

    def post(self, messages):
        self.begins += [(at, number, size, links) for number, at, _, _, size, links in messages]
        self.begins.sort()

    def advance(self, until):
        """To the first instant at which messages arrive, or to `until`: (that time, the messages)."""
        while True:
            soon = [self.begins[0][0]] if self.begins else []
            soon += self.drained.values()
            soon += self.lands.values()
            if not soon or (until is not None and min(soon) > until):
                self.now = self.now if until is None else until
                return self.now, []
            self.now = min(soon)
            landed = sorted(number for number, at in self.lands.items() if at == self.now)
            for number in landed:
                del self.lands[number]
            over = [number for number, at in self.drained.items() if at == self.now]
            for number in over:
                self.lands[number] = self.now + sum(self.latency[link] for link in self.links.pop(number))
                del self.left[number], self.speed[number], self.drained[number]
            began = False
            while self.begins and self.begins[0][0] <= self.now:
                _, number, size, links = self.begins.pop(0)
                self.left[number], self.links[number], self.speed[number] = size, links, 0.0
                began = True
            if over or began:
                self.share()
            if landed:
                return self.now, landed

    def share(self):
        """New rates from now on."""
        rates = max_min(self.links, self.rate) if self.shared else self.alone()
        for number, rate in rates.items():
            self.left[number] = max(self.left[number] - self.speed[number] * (self.now - self.since), 0.0)
            if rate != self.speed[number]:
                self.drained[number] = self.now + math.ceil(self.left[number] / rate - 1e-6)
            self.speed[number] = rate
        self.since = self.now

    def alone(self):
        return {number: min(self.rate[link] for link in links) for number, links in self.links.items()}


def max_min(routes, capacity):
    """Rates that share links max-min fairly: the fullest link first."""
    rates, open_ = {}, dict(routes)
    free = list(capacity)
    while open_:
        users = {}
        for number, links in open_.items():
            for link in links:
                users.setdefault(link, []).append(number)
        tightest = min(users, key=lambda link: free[link] / len(users[link]))
        share = free[tightest] / len(users[tightest])
        for number in users[tightest]:
            rates[number] = share
            for link in open_.pop(number):
                free[link] -= share
    return rates


def main():
    about = json.loads(sys.stdin.readline())
    network = Network(about["links"], shared="flow" in sys.argv[1:])
    print(json.dumps({"network": 1}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked.get("end"):
            return
        network.post(asked["post"])
        now, arrived = network.advance(asked["advance"])
        print(json.dumps({"now": now, "arrived": arrived}), flush=True)


if __name__ == "__main__":
    main()
