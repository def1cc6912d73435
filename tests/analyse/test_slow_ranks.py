import numpy as np

from etude.analyse.slow_ranks import FEW, _every


def test_of_many_samples_of_a_key_every_so_many_th_and_of_few_all() -> None:
    key = np.array([7] * (2 * FEW) + [1] * FEW)
    assert _every(1, key).all()
    chosen = _every(4, key)
    assert np.flatnonzero(chosen[: 2 * FEW]).tolist() == list(range(0, 2 * FEW, 4)) and chosen[2 * FEW :].all()
    mixed = np.random.default_rng(0).permutation(len(key))
    assert np.flatnonzero(_every(4, key[mixed]) & (key[mixed] == 7)).size == FEW // 2
