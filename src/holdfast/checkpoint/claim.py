"""The right to drive one run."""

from datetime import timedelta

import msgspec

from holdfast.checkpoint.liveness import ProcessIdentity


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A process that drives runs. One heartbeat, whatever the number of its runs."""

    #: New for every process start; never used again.
    worker_id: str
    process: ProcessIdentity


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The right to drive one run, until a larger token exists.

    The holder keeps the token it was given and hands it to every write. It never reads a newer one from the store:
    that would defeat the fence.
    """

    run_id: str
    worker_id: str
    #: Grows over the whole store, so also over removal and re-creation of a run id.
    token: int
    #: Claims in a row, this one included, without a finished step.
    strikes: int


_BACKOFF = (timedelta(0), timedelta(0), timedelta(seconds=5), timedelta(seconds=30))


def backoff(strikes: int) -> timedelta:
    """How long recovery waits, counted from the claim, before it takes a run with so many strikes again.

    The first death of an owner costs no wait: that is a deploy or a power cut. Those after it look like poison.
    """
    return _BACKOFF[min(strikes, len(_BACKOFF) - 1)]
