"""Kernels that scan the protobuf wire format of `.et` files."""

import numpy as np

from etude.astra.kernels.compiling import kernel

OK, CUT, BROKEN, TWICE, EMPTY, FULL = range(6)
COUNT_NODES, COUNT_WIDEST, COUNT_FILE, COUNT_AT, NUM_COUNTS = range(5)

# What the simulation reads, by length; the place in this list is the number of the attribute.
NAMES = (
    "pg_name",
    "num_ops",
    "comm_src",
    "comm_dst",
    "comm_tag",
    "is_cpu_op",
    "comm_type",
    "comm_size",
    "tensor_size",
    "involved_dim",
)
PG_NAME, NUM_OPS, COMM_SRC, COMM_DST, COMM_TAG, IS_CPU, COMM_TYPE, COMM_SIZE, TENSOR_SIZE, INVOLVED_DIM = range(10)
LONGEST = 12
TEXT = np.zeros((len(NAMES), LONGEST), np.uint8)
for _row, _name in enumerate(NAMES):
    TEXT[_row, : len(_name)] = np.frombuffer(_name.encode(), np.uint8)
FIRST = np.array([sum(len(n) < size for n in NAMES) for size in range(LONGEST + 2)])  # of the names of a length

NODE_ID, NODE_TYPE, NODE_CTRL, NODE_DATA, NODE_DURATION, NODE_ATTR = 1, 3, 4, 5, 7, 10
VALUE_DOUBLE, VALUE_FLOAT, VALUE_SINT32, VALUE_SINT64, VALUE_STRING, VALUE_BOOL_LIST = 3, 5, 15, 17, 29, 28
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
TAG_RANGE = 500_000_000  # the original takes tags modulo this
BAD = np.int64(-1)
NO_ROOM = np.int64(-2)


@kernel
def _varint(data, at, end):
    """(value, place behind it); the place is -1 if the bytes run out."""
    if at < end and data[at] < 0x80:  # nearly all of them
        return np.int64(data[at]), at + 1
    value, shift = np.uint64(0), np.uint64(0)
    while at < end and shift < 70:
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < 0x80:
            return np.int64(value), at
        shift += np.uint64(7)
    return np.int64(0), BAD


@kernel
def _skip(data, at, end, wire):
    """The place behind a field's value, or -1."""
    if wire == 0:
        _, at = _varint(data, at, end)
        return at
    if wire == 1:
        at += 8
    elif wire == 5:
        at += 4
    elif wire == 2:
        size, at = _varint(data, at, end)
        if at == BAD or size < 0 or size > end - at:
            return BAD
        at += size
    else:
        return BAD
    return at if at <= end else BAD


@kernel
def _number_of(data, at, size):
    """Which of NAMES the bytes spell, or -1."""
    if size > LONGEST:
        return BAD
    for number in range(FIRST[size], FIRST[size + 1]):
        same = True
        for i in range(size):
            if data[at + i] != TEXT[number, i]:
                same = False
                break
        if same:
            return np.int64(number)
    return BAD


@kernel
def count(data, ends, counts):
    """Nodes of a block, and the largest number in a file. The first message of a file is its header."""
    begin = np.int64(0)
    for file in range(len(ends)):
        end, messages = ends[file], np.int64(0)
        counts[COUNT_FILE], counts[COUNT_AT] = file, begin
        if begin == end:
            return EMPTY
        at = begin
        while at < end:
            counts[COUNT_AT] = at
            size, at = _varint(data, at, end)
            if at == BAD or size < 0 or size > end - at:
                return CUT
            messages += 1
            at += size
        counts[COUNT_NODES] += messages - 1
        counts[COUNT_WIDEST] = max(counts[COUNT_WIDEST], messages - 1)
        begin = end
    return OK


@kernel
def _attribute(data, at, end, values):
    """Read one attribute; what the simulation needs goes into values. False if it is broken."""
    number, value, text_at, text_size, kind = BAD, np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    while at < end:
        key, at = _varint(data, at, end)
        if at == BAD:
            return False
        field, wire = key >> 3, key & 7
        if wire == 2:
            size, begin = _varint(data, at, end)
            if begin == BAD or size < 0 or size > end - begin:
                return False
            at = begin + size
            if field == 1:
                number = _number_of(data, begin, size)
                if number == BAD:
                    return True
            elif field > 2:
                kind, text_at, text_size = field, begin, size
        elif wire == 0:
            read, at = _varint(data, at, end)
            if at == BAD:
                return False
            if field > 2:
                kind, value = field, read
                if kind == VALUE_SINT32 or kind == VALUE_SINT64:
                    value = np.int64(np.uint64(value) >> np.uint64(1)) ^ -(value & 1)
        else:
            begin = at
            at = _skip(data, at, end, wire)
            if at == BAD:
                return False
            if field > 2:
                kind, value = field, np.int64(0)
                for i in range(at - begin):
                    value |= np.int64(data[begin + i]) << (8 * i)
    if number == BAD or kind == 0:
        return True
    if number == PG_NAME and kind == VALUE_STRING:
        value = _leading_number(data, text_at, text_size)
    elif number == INVOLVED_DIM:
        value = _bools(data, text_at, text_at + text_size) if kind == VALUE_BOOL_LIST else BAD
    values[number] = value
    return True


@kernel
def _leading_number(data, at, size):
    """The digits a text begins with; 0 for an empty one, a number that no group has for one without digits."""
    value, digits = np.int64(0), np.int64(0)
    while digits < size and digits < 9 and 48 <= data[at + digits] <= 57:
        value = value * 10 + (data[at + digits] - 48)
        digits += 1
    if digits == 0 and size > 0:
        return np.int64(2**30)
    return value


@kernel
def _bools(data, at, end):
    """A list of booleans as a mask, the first one in bit 0."""
    mask, bit = np.int64(0), np.int64(0)
    while at < end:
        key, at = _varint(data, at, end)
        if at == BAD:
            return BAD
        stop = at + 1
        if key & 7 == 2:
            size, at = _varint(data, at, end)
            stop = at + size
        while at < min(stop, end) and bit < 15:
            if data[at] != 0:
                mask |= np.int64(1) << bit
            bit += 1
            at += 1
        at = stop
    return mask


@kernel
def _node(data, at, end, values, dep, num_deps):
    """Read one node. Gives back (id, type, duration, dependencies so far).

    The type is -1 if the node is broken, -2 if `dep` has no room for its dependencies.
    """
    node_id, kind, duration = np.int64(0), np.int64(0), np.int64(0)
    while at < end:
        key, at = _varint(data, at, end)
        if at == BAD:
            return node_id, BAD, duration, num_deps
        field, wire = key >> 3, key & 7
        is_dep = field == NODE_CTRL or field == NODE_DATA
        if wire == 0:
            value, at = _varint(data, at, end)
            if at == BAD:
                return node_id, BAD, duration, num_deps
            if field == NODE_ID:
                node_id = value
            elif field == NODE_TYPE:
                kind = value
            elif field == NODE_DURATION:
                duration = value
            elif is_dep:
                if num_deps == len(dep):
                    return node_id, NO_ROOM, duration, num_deps
                dep[num_deps] = value
                num_deps += 1
            continue
        if wire != 2:
            at = _skip(data, at, end, wire)
            if at == BAD:
                return node_id, BAD, duration, num_deps
            continue
        size, begin = _varint(data, at, end)
        if begin == BAD or size < 0 or size > end - begin:
            return node_id, BAD, duration, num_deps
        at = begin + size
        if field == NODE_ATTR:
            if not _attribute(data, begin, at, values):
                return node_id, BAD, duration, num_deps
        elif is_dep:
            while begin < at:
                value, begin = _varint(data, begin, at)
                if begin == BAD:
                    return node_id, BAD, duration, num_deps
                if num_deps == len(dep):
                    return node_id, NO_ROOM, duration, num_deps
                dep[num_deps] = value
                num_deps += 1
    return node_id, kind if 0 <= kind < 255 else np.int64(255), duration, num_deps


@kernel
def _slot_of(table_id, table_row, mask, node_id):
    """Where an id is in the table, or the empty slot where it belongs."""
    slot = np.int64((np.uint64(node_id) * GOLDEN) >> np.uint64(32)) & mask
    while table_row[slot] >= 0 and table_id[slot] != node_id:
        slot = (slot + 1) & mask
    return slot


@kernel
def fill(
    data,
    ends,
    rank_start,
    counts,
    values,
    table_id,
    table_row,
    dep_id,
    source_id,
    kind,
    is_cpu,
    duration_us,
    num_ops,
    tensor_size,
    comm_type,
    comm_size,
    src,
    dst,
    tag,
    group,
    involved_dims,
    dep_start,
    dep,
):
    """Read a block of files that `count` has been through into columns, after the nodes that are there already.

    There is room for the nodes; where there is not for their dependencies, the block is to be read again with more.
    """
    row, edges, begin = rank_start[0], dep_start[rank_start[0]], np.int64(0)
    for file in range(len(ends)):
        end, first_edge = ends[file], edges
        mask = np.int64(15)
        size, at = _varint(data, begin, end)
        at += size
        while mask < 2 * counts[COUNT_WIDEST]:
            mask = 2 * mask + 1
        for i in range(mask + 1):
            table_row[i] = -1
        counts[COUNT_FILE] = file
        while at < end:
            counts[COUNT_AT] = at
            size, at = _varint(data, at, end)
            for i in range(len(values)):
                values[i] = -1
            values[IS_CPU], values[PG_NAME] = 0, 0
            node_id, node_kind, duration, local = _node(data, at, at + size, values, dep_id, edges - first_edge)
            slot = _slot_of(table_id, table_row, mask, node_id)
            if node_kind == BAD:
                return BROKEN
            if node_kind == NO_ROOM or first_edge + local > len(dep):
                return FULL
            if table_row[slot] >= 0:
                return TWICE
            table_id[slot], table_row[slot] = node_id, row
            at += size
            edges = first_edge + local
            source_id[row], kind[row], duration_us[row] = np.uint64(node_id), node_kind, duration
            is_cpu[row], num_ops[row], tensor_size[row] = values[IS_CPU] != 0, values[NUM_OPS], values[TENSOR_SIZE]
            comm_type[row], comm_size[row] = values[COMM_TYPE], values[COMM_SIZE]
            src[row], dst[row] = values[COMM_SRC], values[COMM_DST]
            tag[row] = values[COMM_TAG] % TAG_RANGE if values[COMM_TAG] >= 0 else -1
            group[row], involved_dims[row] = values[PG_NAME] if values[PG_NAME] != 0 else -1, values[INVOLVED_DIM]
            row += 1
            dep_start[row] = edges
        for i in range(edges - first_edge):
            dep[first_edge + i] = table_row[_slot_of(table_id, table_row, mask, dep_id[i])]
        rank_start[file + 1] = row
        begin = end
    return OK


@kernel
def find_groups(group, ids, world, unknown):
    """Turn the numbers of groups into their places among the ascending ids."""
    for i in range(len(group)):
        if group[i] != world:
            low, high = 0, len(ids)
            while low < high:
                middle = (low + high) // 2
                if ids[middle] < group[i]:
                    low = middle + 1
                else:
                    high = middle
            group[i] = low if low < len(ids) and ids[low] == group[i] else unknown
