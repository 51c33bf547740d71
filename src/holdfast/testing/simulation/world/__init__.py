"""A simulated world: processes and clients that execute a plan, and the audit at its end."""
