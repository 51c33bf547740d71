"""Stores that break the contract of pages."""

import msgspec
from tests.stores.broken.broken_store import BrokenStore

from holdfast.checkpoint.errors import InvalidCursor
from holdfast.checkpoint.record import RunFilter, RunPage
from holdfast.checkpoint.store import iter_runs


class BrokenPages(BrokenStore):
    """Breaks the pages that are newest first."""

    async def list_page(
        self,
        filter: RunFilter | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = False,
    ) -> RunPage:
        if oldest_first:
            return await super().list_page(filter, limit=limit, cursor=cursor, oldest_first=True)
        return await self.read_page(filter, limit, cursor)

    async def read_page(self, filter: RunFilter | None, limit: int, cursor: str | None) -> RunPage:
        return await super().list_page(filter, limit=limit, cursor=cursor)


class HasAlwaysACursor(BrokenPages):
    red = ("test_an_empty_store_has_one_empty_page", "test_a_page_has_a_cursor_only_if_runs_are_left")

    async def read_page(self, filter: RunFilter | None, limit: int, cursor: str | None) -> RunPage:
        page = await super().read_page(filter, limit, cursor)
        return msgspec.structs.replace(page, cursor=page.cursor or "0")


class PagesByTheLastChange(BrokenPages):
    red = ("test_pages_are_newest_first_by_creation",)

    async def read_page(self, filter: RunFilter | None, limit: int, cursor: str | None) -> RunPage:
        page = await super().read_page(filter, limit, cursor)
        by_change = sorted(page.records, key=lambda record: record.updated_at, reverse=True)
        return msgspec.structs.replace(page, records=by_change)


class HasSmallPages(BrokenPages):
    red = ("test_a_page_has_fifty_runs_unless_told_otherwise",)

    async def read_page(self, filter: RunFilter | None, limit: int, cursor: str | None) -> RunPage:
        return await super().read_page(filter, min(limit, 20), cursor)


class PagesWithoutLabels(BrokenPages):
    red = ("test_a_record_of_a_page_equals_the_loaded_one",)

    async def read_page(self, filter: RunFilter | None, limit: int, cursor: str | None) -> RunPage:
        page = await super().read_page(filter, limit, cursor)
        return RunPage(records=[msgspec.structs.replace(each, labels={}) for each in page.records], cursor=page.cursor)


class CountsFromTheTop(BrokenPages):
    """The cursor is an offset: a new run moves all others."""

    red = ("test_pages_repeat_and_skip_nothing_while_runs_come_and_go",)

    async def read_page(self, filter: RunFilter | None, limit: int, cursor: str | None) -> RunPage:
        records = [record async for record in iter_runs(self, filter)][::-1]
        end = int(cursor or 0) + limit
        return RunPage(records=records[end - limit : end], cursor=str(end) if end < len(records) else None)


class RemembersTheRunAtTheCursor(BrokenPages):
    """The cursor names a run, and is lost with it."""

    red = ("test_pages_repeat_and_skip_nothing_while_runs_come_and_go",)

    async def read_page(self, filter: RunFilter | None, limit: int, cursor: str | None) -> RunPage:
        records = [record async for record in iter_runs(self, filter)][::-1]
        names = [record.run_id for record in records]
        if cursor is not None and cursor not in names:
            raise InvalidCursor(cursor)
        start = 0 if cursor is None else names.index(cursor) + 1
        page = records[start : start + limit]
        return RunPage(records=page, cursor=page[-1].run_id if start + limit < len(records) else None)


class ForgetsUsedCursors(BrokenPages):
    red = ("test_a_cursor_may_be_used_again_and_with_another_limit",)

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._used: set[str] = set()

    async def read_page(self, filter: RunFilter | None, limit: int, cursor: str | None) -> RunPage:
        if cursor in self._used:
            raise InvalidCursor(cursor)
        self._used.update([] if cursor is None else [cursor])
        return await super().read_page(filter, limit, cursor)


class StartsAgainAtAWrongCursor(BrokenPages):
    red = ("test_a_wrong_cursor_is_refused",)

    async def read_page(self, filter: RunFilter | None, limit: int, cursor: str | None) -> RunPage:
        try:
            return await super().read_page(filter, limit, cursor)
        except InvalidCursor:
            return await super().read_page(filter, limit, None)


class LeaksErrorsOfTheCursor(BrokenPages):
    red = ("test_a_wrong_cursor_is_refused",)

    async def read_page(self, filter: RunFilter | None, limit: int, cursor: str | None) -> RunPage:
        return await super().read_page(filter, limit, None if cursor is None else str(int(cursor)))


class AppliesFiltersAfterTheLimit(BrokenPages):
    """A page may be short though further runs match."""

    red = ("test_pages_and_listings_match_every_filter",)

    async def read_page(self, filter: RunFilter | None, limit: int, cursor: str | None) -> RunPage:
        page = await super().read_page(None, limit, cursor)
        return RunPage(
            records=[record for record in page.records if (filter or RunFilter()).matches(record)], cursor=page.cursor
        )


class IgnoresTheTimeOfCreation(BrokenPages):
    red = ("test_pages_and_listings_match_every_filter",)

    async def read_page(self, filter: RunFilter | None, limit: int, cursor: str | None) -> RunPage:
        every = msgspec.structs.replace(filter or RunFilter(), created_after=None, created_before=None)
        return await super().read_page(every, limit, cursor)
