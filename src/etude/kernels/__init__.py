"""Compiled pieces that several rooms need, each written once. `compile.kernel` is the one decorator of all kernels."""

from etude.base.faces import verb

verb(__name__)
