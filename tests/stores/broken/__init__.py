"""Stores that break the contract, each in one way, and the tests of the suite that have to notice."""
