"""Readers of what PyTorch records: host traces (ExecutionTraceObserver) and device traces (Kineto)."""

from etude.faces import verb

verb(__name__)
