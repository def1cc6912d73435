"""A model with as many of its layers as are simulated."""

from dataclasses import replace

from etude.make.generate.model import Model


def shortened(model: Model, layers: int) -> Model:
    """This many of its layers, which are alike; 0: all."""
    if not layers:
        return model
    if not model.blocks:
        return model.replace(layers=min(layers, model.layers))
    blocks = [replace(b, repeat=min(layers, b.repeat)) for b in model.blocks]
    return model.replace(blocks=tuple(blocks))
