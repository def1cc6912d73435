"""The repeat of a sequence that saves most."""

from etude.kernels.compile import kernel


@kernel
def best_repeat(sequence, max_period):
    """(begin, period, times): a part that is repeated `times` times in a row. Saves the most, (times - 1) x period;
    ties go to the shortest period, then the first. (0, 0, 0) if there is none."""
    n = len(sequence)
    best, begin, found_period, found_times = 0, 0, 0, 0
    for period in range(1, min(n // 2, max_period) + 1):
        if n - period <= best:  # no longer period can save more
            break
        run = 0
        for i in range(n - period):
            if sequence[i] == sequence[i + period]:
                run += 1
                saved = run - run % period
                if saved > best:
                    best, begin, found_period, found_times = saved, i + 1 - run, period, run // period + 1
            else:
                run = 0
    return begin, found_period, found_times
