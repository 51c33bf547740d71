"""Names the extra of holdfast that a missing module belongs to."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def require_extra(extra: str) -> Iterator[None]:
    """Say how to install the extra, if an import within the context finds that one of its modules is missing.

    Raises:
        ModuleNotFoundError: a module that is not holdfast's own is missing.
    """
    try:
        yield
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] == "holdfast" or "holdfast[" in str(exc):
            raise
        text = f'{exc.name} is not installed: pip install "holdfast[{extra}]"'
        raise ModuleNotFoundError(text, name=exc.name, path=exc.path) from None
