"""The long loop of a training job, second by second in words: one tier that stops the steps, restarts alone."""

from __future__ import annotations


def fleet(
    step: int, every: int, stall: int, faults: list[int], detect: int, restart: int, horizon: int
) -> dict[str, int]:
    """Where the time goes, unit by unit. `restart` includes the load; faults are times, all stop the job."""
    parts = {"useful": 0, "detect": 0, "restart": 0, "redo": 0, "checkpoint": 0, "idle": 0}
    done, saved, inside, state, left = 0, 0, 0, "step", step
    for now in range(horizon):
        if now in faults:
            parts["redo"] += inside
            lost = done - saved
            parts["useful"] -= lost * step
            parts["redo"] += lost * step
            done, inside = saved, 0
            state, left = ("detect", detect) if detect else ("restart", restart)
        while left == 0:  # restarts may take no time
            state, left = ("step", step) if state == "restart" else ("restart", restart)
        left -= 1
        if state == "step":
            inside += 1
            if left == 0:
                parts["useful"] += inside
                done, inside = done + 1, 0
                state, left = ("save", stall) if done % every == 0 and stall else ("step", step)
                if done % every == 0 and not stall:
                    saved = done
        elif state == "save":
            parts["checkpoint"] += 1
            if left == 0:
                saved, state, left = done, "step", step
        elif state == "detect":
            parts["detect"] += 1
            if left == 0:
                state, left = ("restart", restart) if restart else ("step", step)
        else:
            parts["restart"] += 1
            if left == 0:
                state, left = "step", step
    parts["idle"] += inside
    return parts | {"steps": done}
