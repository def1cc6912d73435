"""Who gives nodes up when a workload wants more than are free."""
