"""Pieces of prompts: the keys of a cache.

A file names the blocks of prompts, or their segments with a length each. The text of a segment is unknown, but equal
names mean equal text: token k of a segment is a number drawn from its name and k. On these

- `prefix` takes blocks as named if a name identifies everything before it (Mooncake), otherwise cuts prompts at fixed
  intervals and names a piece after all tokens up to its end;
- `blocks` takes blocks and segments as they are;
- `content` cuts where the sum over the last WINDOW tokens says so, and names a piece after its own tokens: the same
  text elsewhere is cut at the same places, once the window is inside it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.kernels.compile import kernel
from etude.world.serve.cache import CacheRules
from etude.world.serve.requests import Requests
from etude.world.serve.rings import NOT_AGAIN

ANYWHERE: Final = -1
WINDOW: Final = 32
UNIT: Final = 4
"""Blocks of keys and values in a piece of a prefix."""
_GOLDEN, _MIX_A, _MIX_B = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


class CachePieces(NamedTuple):
    start: I64
    """Pieces of request r are ids[start[r] : start[r + 1]]."""
    ids: I64
    ends: I64
    """Tokens of the prompt up to the end of a piece."""
    size: I64
    """Tokens of an id; if its length differs between prompts, the fewest."""
    home: I64
    """Group of an id, which is on the replica of that number where pieces are sharded; ANYWHERE: on all."""
    next_use: I64
    """For each of `ids` the next request with the same id, or NOT_AGAIN."""
    pinned: NDArray[np.uint8]


def pieces_of(requests: Requests, rules: CacheRules, block: int, *, way: str = "") -> CachePieces:
    """`way`: the mode, if it differs from that of the rules."""
    mode = way or rules.mode
    if not len(requests.block):
        hint = "`hash_ids`, as Mooncake's files have, or `segments`; or --cache none"
        raise UsageError("the requests do not name their blocks", hint=hint)
    owner = np.repeat(np.arange(len(requests)), np.diff(requests.block_start))
    ends = np.cumsum(requests.block_tokens)
    ends -= np.concatenate([[0], ends])[requests.block_start[owner]]
    begin = ends - requests.block_tokens
    wrong = np.flatnonzero(begin >= requests.prompt[owner])
    if len(wrong):
        raise UsageError("has more blocks than its prompt needs", where=f"request {owner[wrong[0]]}")
    start, ids, home = requests.block_start, requests.block, requests.block_home
    if mode == "content" or (mode == "prefix" and not requests.chained):
        unit = 0 if mode == "content" else UNIT * block
        start, hashes, ends = _cut(start, ids, np.minimum(ends, requests.prompt[owner]) - begin, unit, rules.chunk)
        ids = np.unique(hashes, return_inverse=True)[1].astype(np.int64)
        home = np.full(len(ids), ANYWHERE, np.int64)
        owner = np.repeat(np.arange(len(requests)), np.diff(start))
    elif not requests.chained:
        pairs = np.unique(np.stack([ids, requests.block_tokens]), axis=1, return_inverse=True)
        ids = pairs[1].reshape(-1).astype(np.int64)
    ends = np.minimum(ends, requests.prompt[owner])
    return _described(start, ids, ends, home, owner, rules)


def _described(start: I64, ids: I64, ends: I64, home: I64, owner: I64, rules: CacheRules) -> CachePieces:
    count = int(ids.max()) + 1 if len(ids) else 1
    begin = np.where(np.arange(len(ids)) == start[owner], 0, np.concatenate([[0], ends[:-1]]))
    size = np.full(count, NOT_AGAIN, np.int64)
    np.minimum.at(size, ids, ends - begin)
    lies = np.full(count, ANYWHERE, np.int64)
    np.maximum.at(lies, ids, home)
    if rules.sharded and not (home >= 0).any():
        lies = np.arange(count)
    pinned = np.zeros(count, np.uint8)
    pinned[ids[begin < rules.pinned_tokens]] = 1
    return CachePieces(start, ids, ends, size, lies, next_uses(ids, owner), pinned)


def next_uses(ids: I64, owner: I64) -> I64:
    """For each id the next request with the same id."""
    order = np.lexsort((owner, ids))
    one, who = ids[order], owner[order]
    following = np.full(len(ids), NOT_AGAIN, np.int64)
    # Runs of one id and one request share the successor of the run.
    starts = np.flatnonzero(np.concatenate([[True], (one[1:] != one[:-1]) | (who[1:] != who[:-1])]))
    after = np.append(starts[1:], len(ids))
    known = after < len(ids)
    same = np.zeros(len(starts), bool)
    same[known] = one[after[known]] == one[starts[known]]
    value = np.full(len(starts), NOT_AGAIN, np.int64)
    value[same] = who[after[same]]
    following[order] = np.repeat(value, np.diff(np.append(starts, len(ids))))
    return following


@kernel(allocates=False, inline="llvm")
def _mixed(x):
    x = (x ^ (x >> _S30)) * _MIX_A
    x = (x ^ (x >> _S27)) * _MIX_B
    return x ^ (x >> _S31)


@kernel
def _cut(start, ids, tokens, unit, mean):
    """Starts, names and ends of the pieces of all prompts: every `unit` tokens, or by content if it is 0."""
    rows = len(start) - 1
    starts = np.zeros(rows + 1, np.int64)
    names, ends = np.zeros(1024, np.uint64), np.zeros(1024, np.int64)
    recent = np.zeros(WINDOW, np.uint64)
    n = 0
    for r in range(rows):
        recent[:] = np.uint64(0)
        name, window, at, until_cut = _GOLDEN, np.uint64(0), 0, unit
        last = start[r + 1] - 1
        for k in range(start[r], start[r + 1]):
            seed = np.uint64(ids[k] + 1) * _GOLDEN
            for j in range(tokens[k]):
                token = _mixed(seed + np.uint64(j) * _MIX_B)
                name = (name ^ token) * _MIX_A + _GOLDEN
                if unit:
                    at += 1
                    until_cut -= 1
                    cut = until_cut == 0
                else:
                    window += token - recent[at % WINDOW]
                    recent[at % WINDOW] = token
                    at += 1
                    cut = _mixed(window) % np.uint64(mean) == np.uint64(0)
                if cut or (k == last and j == tokens[k] - 1):
                    if n == len(names):
                        more, further = np.zeros(2 * n, np.uint64), np.zeros(2 * n, np.int64)
                        more[:n], further[:n] = names, ends
                        names, ends = more, further
                    names[n], ends[n] = _mixed(name), at
                    n += 1
                    until_cut = unit
                    if not unit:
                        name = _GOLDEN
        starts[r + 1] = n
    return starts, names[:n].copy(), ends[:n].copy()
