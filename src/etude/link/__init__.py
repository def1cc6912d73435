"""Readers of PyTorch recordings: host traces (ExecutionTraceObserver) and device traces (Kineto)."""

from etude.faces import verb

verb(__name__)
