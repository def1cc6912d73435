"""Where the driver puts segments: of free blocks of one size the allocator takes the one at the lowest address.

The driver reserves addresses in pieces of 32 MiB or a multiple, each below the last one, as Linux maps memory from the
top down. A segment goes to the lowest gap that holds it, otherwise to a new piece. Read off the addresses of two
programs on an H200 (a compiled BERT, a Conformer), which also have gaps from before their first tensor; these are left
out.
"""

from __future__ import annotations

from etude.cost.allocator.blocks import GAPS, LOWEST, PIECE, PLACED
from etude.kernels.compile import kernel


@kernel(allocates=False)
def _drop_gap(arena, at):
    arena.number[GAPS] -= 1
    last = arena.number[GAPS]
    arena.gap[at], arena.gap_size[at] = arena.gap[last], arena.gap_size[last]


@kernel(allocates=False)
def return_address(arena, address, size):
    """Makes a gap; gaps that touch become one."""
    at = 0
    while at < arena.number[GAPS]:
        begin, more = arena.gap[at], arena.gap_size[at]
        if begin + more == address or address + size == begin:
            address, size = min(begin, address), size + more
            _drop_gap(arena, at)
        else:
            at += 1
    at = arena.number[GAPS]
    arena.gap[at], arena.gap_size[at] = address, size
    arena.number[GAPS] += 1


@kernel(allocates=False)
def take_address(arena, size):
    number, found = arena.number, -1
    if number[PLACED] < len(arena.placed):
        number[PLACED] += 1
        return arena.placed[number[PLACED] - 1]
    for at in range(number[GAPS]):
        if arena.gap_size[at] >= size and (found < 0 or arena.gap[at] < arena.gap[found]):
            found = at
    if found < 0:
        piece = (size + PIECE - 1) // PIECE * PIECE
        number[LOWEST] -= piece
        return_address(arena, number[LOWEST], piece)
        found = number[GAPS] - 1
    address = arena.gap[found]
    arena.gap[found] += size
    arena.gap_size[found] -= size
    if arena.gap_size[found] == 0:
        _drop_gap(arena, found)
    return address
