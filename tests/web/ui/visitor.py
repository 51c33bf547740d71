"""A person at the page: a browser with or without JavaScript, and runs of its own."""

import re
from typing import Any

from playwright.sync_api import Locator, Page, expect
from tests.web.ui.server import UIServer

from holdfast.core.run.messages import ToolResult

#: The link with this token logs a visitor in.
TOKEN = "the-token-of-the-tests"


class Visitor:
    """Goes from page to page of one server, and asks its App what came of it."""

    def __init__(self, server: UIServer, page: Page, has_script: bool, name: str) -> None:
        self.server, self.page, self.has_script = server, page, has_script
        #: Begins the ids of the runs: those of other tests are on the same pages.
        self.prefix = re.sub(r"[^a-z]+", "-", name.removeprefix("test_")).strip("-")

    def open(self, path: str) -> None:
        self.page.goto(self.server.url + path)

    def name(self, name: str) -> str:
        """Return the id of a run of this visitor."""
        return f"{self.prefix}-{name}"

    def submit(self, agent: str, name: str, *statuses: str, **options: Any) -> str:
        """Queue a run, and wait until it has one of these statuses."""
        run_id = self.server.submit(agent, "Pay the invoice of ann.", self.name(name), **options)
        if statuses:
            self.server.wait_for(run_id, *statuses)
        return run_id

    def submit_all(self, agent: str, *names: str, status: str, **options: Any) -> list[str]:
        """As `submit`, for several runs at once."""
        run_ids = [self.submit(agent, name, **options) for name in names]
        for run_id in run_ids:
            self.server.wait_for(run_id, status)
        return run_ids

    def find_task(self, kind: str, run_id: str) -> Locator:
        """Return what the page asks a person about a run."""
        return self.page.get_by_role("article", name=f"{kind} of run {run_id}", exact=True)

    def click(self, name: str, within: Locator | None = None, role: Any = "button") -> None:
        """Press a button, or follow a link, with this name. With JavaScript the name ends with a key."""
        pattern = re.compile(rf"^{re.escape(name).replace('/', '[/]')}( (a|Enter))?$")
        (within or self.page).get_by_role(role, name=pattern).click()

    def expect_said(self, text: str) -> None:
        """Expect that the page confirms an action."""
        expect(self.page.get_by_role("status")).to_contain_text(text)

    def get_status(self, run_id: str) -> str:
        return self.server.call(self.server.app.get(run_id)).status.value

    def get_results(self, run_id: str) -> list[str]:
        """Return the results of the run's calls, when it has ended."""
        self.server.wait_for(run_id, "done")
        messages = self.server.call(self.server.app.result(run_id)).messages
        return [str(message.content) for message in messages if isinstance(message, ToolResult)]
