from etude.world.policies import PowerView


def cap_training_first(view: PowerView) -> float:
    """Training slows down until all fit under the cap; the rest is served at full speed."""
    left = view.cap_w - view.base_w - view.serving_w
    return 1.0 if not view.training_w else min(max(left / view.training_w, 0.0), 1.0)
