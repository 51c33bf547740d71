"""Scenarios: what happens in a world, drawn from its seed, and the scripted agents that it happens to."""
