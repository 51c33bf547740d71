"""The failure of a run, as its caller gets it: `RunFailed`, whose cause is the exception that ended the run."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, TypeVar

import pytest

from holdfast.core.errors import RunFailed
from holdfast.core.run.status import AttemptEnd, classify_error

ErrorT = TypeVar("ErrorT", bound=BaseException)


class Cause(Generic[ErrorT]):
    """The exception that has ended a run, when it has."""

    value: ErrorT


@contextmanager
def fails_with(kind: type[ErrorT], match: str | None = None) -> Iterator[Cause[ErrorT]]:
    """Expect that a run fails here, and that an exception of this class has ended it."""
    cause = Cause[ErrorT]()
    with pytest.raises(RunFailed, match=match) as caught:
        yield cause
    error = caught.value.__cause__
    assert isinstance(error, kind), repr(error)
    cause.value = error


def ends_with(error: BaseException) -> AbstractContextManager[Any]:
    """Expect that a run ends here with this error, or fails with it as the cause."""
    failed = classify_error(error) is AttemptEnd.FAILED
    return fails_with(type(error)) if failed else pytest.raises(type(error))
