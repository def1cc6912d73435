"""One replica of a serving engine in plain Python, pass by pass: the definition that the compiled loop must meet."""

from collections import deque


def served(requests, *, time_ns, chunked=True, budget=2048, max_seqs=256, block=16, blocks=10**9, reserve=False):
    """(first token, last token, times it gave way) of each (arrival, prompt, output); `time_ns(prompt tokens, decode)`
    is the time of a pass. Who gives way reads everything again; nothing is chosen ahead."""
    need = lambda tokens: -(-tokens // block)  # noqa: E731
    computed, out, held = ([0] * len(requests) for _ in range(3))
    first, last, gave_way = ([None] * len(requests), [None] * len(requests), [0] * len(requests))
    coming, waiting, running, now = deque(range(len(requests))), deque(), [], 0
    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, requests[coming[0]][0])
        while coming and requests[coming[0]][0] <= now:
            waiting.append(coming.popleft())
        batch, left, stopped = {}, budget, False

        def enter():
            nonlocal left
            while waiting and left > 0 and len(running) < max_seqs:
                r = waiting[0]
                whole = requests[r][1] + out[r]
                tokens = min(whole, left) if chunked else whole
                if not chunked and tokens > left and batch:  # noqa: B023
                    return
                wanted = need(requests[r][1] + requests[r][2]) if reserve else need(tokens)
                if sum(held) + (wanted if reserve else need(whole)) > blocks:
                    return
                waiting.popleft()
                running.append(r)
                held[r], batch[r] = wanted, tokens  # noqa: B023
                left -= tokens

        def go_on():
            nonlocal left, stopped
            for r in running:
                if r not in running or left <= 0:
                    continue
                tokens = min(requests[r][1] + out[r] - computed[r], left)
                while not stopped or r in running:
                    more = max(need(computed[r] + tokens) - held[r], 0)
                    if sum(held) + more <= blocks:
                        break
                    victim = running.pop()
                    held[victim], computed[victim], stopped = 0, 0, True
                    gave_way[victim] += 1
                    waiting.appendleft(victim)
                if r not in running:
                    return
                held[r] = max(held[r], need(computed[r] + tokens))
                batch[r] = tokens  # noqa: B023
                left -= tokens

        if chunked:
            go_on()
            if not stopped:
                enter()
        else:
            enter()
            if not batch:
                go_on()
        decode = sum(1 for r, n in batch.items() if n == 1 and computed[r] >= requests[r][1])
        now += time_ns(sum(batch.values()) - decode, decode)
        for r, tokens in batch.items():
            computed[r] += tokens
            if computed[r] == requests[r][1] + out[r]:
                out[r] += 1
                first[r] = now if first[r] is None else first[r]
            if out[r] == requests[r][2]:
                last[r], held[r] = now, 0
                running.remove(r)
    return list(zip(first, last, gave_way, strict=True))
