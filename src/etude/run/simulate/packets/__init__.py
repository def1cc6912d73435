"""Packets and queues: store-and-forward switches, first in first out, with ECN marks and PFC; senders as RoCE has
them."""
