"""A deterministic simulator: many processes, one store and every fault, in virtual time. One seed is one schedule."""

from holdfast.testing.simulation.simulate import SimulationFailed, simulate

__all__ = ["SimulationFailed", "simulate"]
