"""The root of the errors that holdfast raises. `holdfast.errors` draws the tree."""


class HoldfastError(Exception):
    """An error that holdfast raises. The message says what happened and what to do."""
