"""Readers of what PyTorch records: host traces (ExecutionTraceObserver) and device traces (Kineto)."""
