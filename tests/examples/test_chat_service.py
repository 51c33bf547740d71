"""The chat service as a process of its own: a chat and its approval survive a kill between question and answer."""

import signal
from pathlib import Path
from typing import Any

import pytest
from tests.examples.test_web_service import TIMEOUT, Server, serve

MODULE = "examples.chat_service"
REFUND = {"id": "m2", "text": "refund 900"}


def get_approval(server: Server) -> dict[str, Any]:
    status, [call] = server.request("/approvals")
    assert (status, call["arguments"], call["reason"], call["audience"]) == (
        200, {"amount": 900}, "more than 100", "finance",
    )  # fmt: skip
    return dict(call)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_between_question_and_approval_loses_nothing(tmp_path: Path, end: signal.Signals) -> None:
    with serve(tmp_path, MODULE) as server:
        hello = (200, {"reply": "You said 'hello'. Try: refund 900"})
        assert server.request("/chats/ann/messages", {"id": "m1", "text": "hello"}) == hello
        assert server.request("/chats/ann/messages", {"id": "m1", "text": "hello"}) == hello
        waiting = (202, {"status": "waiting", "for": ["refund-2"]})
        assert server.request("/chats/ann/messages", REFUND) == waiting
        get_approval(server)
        server.process.send_signal(end)
        server.process.wait(TIMEOUT)
    with serve(tmp_path, MODULE) as server:
        call = get_approval(server)
        path = f"/approvals/{call['run_id']}/{call['call_id']}"
        verdict = {"approve": True, "by": "bob", "digest": call["digest"], "arguments": {"amount": 90}}
        assert server.request(path, {**verdict, "digest": "0" * 16})[0] == 404
        assert server.request(path, {**verdict, "arguments": {"amount": "much"}})[0] == 422
        assert server.request("/approvals/unknown/refund-2", verdict)[0] == 404
        assert server.request(f"/approvals/{call['run_id']}/refund-9", verdict)[0] == 404
        assert server.request(path, verdict) == (204, None)
        assert server.request(path, verdict)[0] in (404, 409)  # the run may have read the first
        assert server.request("/approvals") == (200, [])
        while (answer := server.request("/chats/ann/messages", REFUND))[0] == 202:
            pass  # the worker reads the answer
        assert answer == (200, {"reply": "refunded 90"})
        _, turns = server.request("/chats/ann")
        assert [(turn["message"], turn["status"]) for turn in turns] == [("hello", "done"), ("refund 900", "done")]
