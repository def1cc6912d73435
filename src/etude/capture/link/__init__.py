"""Readers of PyTorch recordings: host traces (ExecutionTraceObserver) and device traces (Kineto)."""
