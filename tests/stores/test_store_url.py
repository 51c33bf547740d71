"""From a URL to a store."""

import pytest

from holdfast.checkpoint.errors import StoreError
from holdfast.stores.url import store_from_url


def test_a_file_url_is_refused_and_names_what_to_use_instead() -> None:
    with pytest.raises(StoreError, match=r"sqlite:PATH.*holdfast export"):
        store_from_url("file:./runs")


@pytest.mark.parametrize("url", ["redis://localhost", "runs.db", "sqlite:", "sqlite://"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match=r"sqlite:"):
        store_from_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:top/secret@db/runs",
        "postgresql://me:top@secret@db/runs",
        "sqlite://me:secret@db/runs",
        "mysql://me:secret@db/runs",
    ],
)
def test_a_url_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(StoreError) as raised:
        store_from_url(url)
    assert "secret" not in str(raised.value)
