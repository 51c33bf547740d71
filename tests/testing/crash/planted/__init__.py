"""Planted bugs: each module breaks holdfast in the process that imports it, and names an agent to test."""
