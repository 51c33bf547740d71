"""What people and machines see of runs from outside: log lines, metrics and the telemetry port."""
