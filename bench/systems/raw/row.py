"""One message of a run, as the raw limits keep it."""

from typing import NamedTuple


class Row(NamedTuple):
    """Where a message belongs, and its text."""

    run: int
    seq: int
    body: bytes
