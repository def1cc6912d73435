"""Ids of dependencies become rows: against a search by hand, over random ids that are dense, repeated or scattered."""

import random

import numpy as np

from etude.store.et_ids import rows_of


def test_rows_of_random_ids_are_the_first_that_have_them():
    random.seed(1)
    for _ in range(200):
        ids, rank_start, edge_start, targets, expected = [], [0], [0], [], []
        for _rank in range(random.randint(1, 4)):
            n = random.randint(0, 6)
            base = random.choice([0, 5, 2**64 - 7, 2**40])
            strange = [0, 1, 7, 2**64 - 1, 2**63, base + 2]
            own = [base + i for i in range(n)] if random.random() < 0.5 else random.choices(strange, k=n)
            for _node in range(n):
                wanted = random.choices([*own, 4, 2**63, base + 6], k=random.randint(0, 3))
                targets += wanted
                expected += [own.index(target) if target in own else -1 for target in wanted]
                edge_start.append(len(targets))
            ids += own
            rank_start.append(len(ids))
        rows = np.empty(len(targets), np.int32)
        starts = np.array(rank_start, np.int64), np.array(edge_start, np.int64)
        rows_of(np.array(ids, np.uint64), *starts, np.array(targets, np.uint64), rows)
        assert rows.tolist() == expected
