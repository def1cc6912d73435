"""Jobs from a description: pipeline schedules, micro-benchmarks, serving, synthesis."""
