"""What lives on the clock: a machine, and the workloads that hold its devices."""
