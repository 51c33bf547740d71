"""The limits commands, as a user meets them."""

import json

from tests.cli.shell import Shell


def test_a_limit_is_set_listed_and_removed(shell: Shell) -> None:
    shell.ok("submit", "sampler", "note", "--run-id", "one", "--key", "tenant", "--priority", "3")
    assert "key tenant: limited to 2" in shell.ok("limits", "set", "2", "--key", "tenant")
    expected = {"key": "tenant", "running": 0, "max_runs": 2, "set_by": "operator"}
    assert json.loads(shell.ok("limits", "list", "--json")) == [expected]
    assert "tenant" in shell.ok("limits", "list")
    assert "removed" in shell.ok("limits", "remove", "--key", "tenant")
    assert json.loads(shell.ok("limits", "list", "--json")) == []
