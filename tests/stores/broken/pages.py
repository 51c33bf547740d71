"""Stores that break the contract of pages."""

from collections.abc import AsyncIterator

import msgspec
from tests.stores.broken.broken_store import BrokenStore

from holdfast.checkpoint.errors import InvalidCursor
from holdfast.checkpoint.record import RunFilter, RunPage, RunRecord


class HasAlwaysACursor(BrokenStore):
    red = ("test_an_empty_store_has_one_empty_page", "test_a_page_has_a_cursor_only_if_runs_are_left")

    async def list_page(
        self, filter: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> RunPage:
        page = await super().list_page(filter, limit=limit, cursor=cursor)
        return msgspec.structs.replace(page, cursor=page.cursor or "0")


class PagesByTheLastChange(BrokenStore):
    red = ("test_pages_are_newest_first_by_creation",)

    async def list_page(
        self, filter: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> RunPage:
        page = await super().list_page(filter, limit=limit, cursor=cursor)
        by_change = sorted(page.records, key=lambda record: record.updated_at, reverse=True)
        return msgspec.structs.replace(page, records=by_change)


class HasSmallPages(BrokenStore):
    red = ("test_a_page_has_fifty_runs_unless_told_otherwise",)

    async def list_page(
        self, filter: RunFilter | None = None, *, limit: int = 20, cursor: str | None = None
    ) -> RunPage:
        return await super().list_page(filter, limit=limit, cursor=cursor)


class PagesWithoutLabels(BrokenStore):
    red = ("test_a_record_of_a_page_equals_the_loaded_one",)

    async def list_page(
        self, filter: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> RunPage:
        page = await super().list_page(filter, limit=limit, cursor=cursor)
        return RunPage(records=[msgspec.structs.replace(each, labels={}) for each in page.records], cursor=page.cursor)


class CountsFromTheTop(BrokenStore):
    """The cursor is an offset: a new run moves all others."""

    red = ("test_pages_repeat_and_skip_nothing_while_runs_come_and_go",)

    async def list_page(
        self, filter: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> RunPage:
        records = [record async for record in self.list_runs(filter)][::-1]
        end = int(cursor or 0) + limit
        return RunPage(records=records[end - limit : end], cursor=str(end) if end < len(records) else None)


class RemembersTheRunAtTheCursor(BrokenStore):
    """The cursor names a run, and is lost with it."""

    red = ("test_pages_repeat_and_skip_nothing_while_runs_come_and_go",)

    async def list_page(
        self, filter: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> RunPage:
        records = [record async for record in self.list_runs(filter)][::-1]
        names = [record.run_id for record in records]
        if cursor is not None and cursor not in names:
            raise InvalidCursor(cursor)
        start = 0 if cursor is None else names.index(cursor) + 1
        page = records[start : start + limit]
        return RunPage(records=page, cursor=page[-1].run_id if start + limit < len(records) else None)


class ForgetsUsedCursors(BrokenStore):
    red = ("test_a_cursor_may_be_used_again_and_with_another_limit",)

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._used: set[str] = set()

    async def list_page(
        self, filter: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> RunPage:
        if cursor in self._used:
            raise InvalidCursor(cursor)
        self._used.update([] if cursor is None else [cursor])
        return await super().list_page(filter, limit=limit, cursor=cursor)


class StartsAgainAtAWrongCursor(BrokenStore):
    red = ("test_a_wrong_cursor_is_refused",)

    async def list_page(
        self, filter: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> RunPage:
        try:
            return await super().list_page(filter, limit=limit, cursor=cursor)
        except InvalidCursor:
            return await super().list_page(filter, limit=limit)


class LeaksErrorsOfTheCursor(BrokenStore):
    red = ("test_a_wrong_cursor_is_refused",)

    async def list_page(
        self, filter: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> RunPage:
        return await super().list_page(filter, limit=limit, cursor=None if cursor is None else str(int(cursor)))


class AppliesFiltersAfterTheLimit(BrokenStore):
    """A page may be short though further runs match."""

    red = ("test_pages_and_listings_match_every_filter",)

    async def list_page(
        self, filter: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> RunPage:
        page = await super().list_page(None, limit=limit, cursor=cursor)
        return RunPage(
            records=[record for record in page.records if (filter or RunFilter()).matches(record)], cursor=page.cursor
        )


class MatchesAnyLabel(BrokenStore):
    red = ("test_pages_and_listings_match_every_filter", "test_a_filter_compares_whole_values")

    async def list_runs(self, filter: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        labels = {} if filter is None else filter.labels
        async for record in super().list_runs(msgspec.structs.replace(filter or RunFilter(), labels={})):
            if not labels or labels.items() & record.labels.items():
                yield record


class IgnoresTheTimeOfCreation(BrokenStore):
    red = ("test_pages_and_listings_match_every_filter",)

    async def list_page(
        self, filter: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> RunPage:
        every = msgspec.structs.replace(filter or RunFilter(), created_after=None, created_before=None)
        return await super().list_page(every, limit=limit, cursor=cursor)


class MatchesPartsOfValues(BrokenStore):
    red = ("test_a_filter_compares_whole_values",)

    async def list_runs(self, filter: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        caller = "" if filter is None else filter.caller_id or ""
        async for record in super().list_runs(msgspec.structs.replace(filter or RunFilter(), caller_id=None)):
            if record.caller_id.startswith(caller):
                yield record
