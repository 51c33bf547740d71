"""The commands of "Going to production", in order, with a real PostgreSQL server and the service of examples/deploy."""

import re
import shutil
from pathlib import Path

from tests.adapters.openai_server import OpenAIServer, Turn
from tests.docs.walkthrough import make_script, play
from tests.examples.test_containers import find_free_ports
from tests.postgres_server import LocalServer

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "production.md"


async def test_every_command_of_the_page_works_with_three_roles_and_a_restored_backup(
    server: LocalServer, tmp_path: Path
) -> None:
    shutil.copy(ROOT / "examples" / "deploy" / "service.py", tmp_path)
    script = make_script(PAGE, replace={})
    for database in ("agents", "restored"):
        script = script.replace(f"@db/{database}", f"@/{database}?host={server.folder}")
    for port, free in zip(("8000", "8081"), find_free_ports(2), strict=True):
        script = script.replace(port, str(free))
    env = {
        "PATH": f"{server.programs}:/usr/bin:/bin",
        "ADMIN_URL": server.url(),
        "API_TOKEN": "none",
        "OPENAI_API_KEY": "none",
    }
    turns: list[Turn] = [[("call_1", "refund", {"order": "7", "amount": 20})], "Refunded."]
    async with OpenAIServer(turns=turns).serving() as model:
        shown = await play(script, tmp_path, {**env, "OPENAI_BASE_URL": model.url})
    assert "card [redacted]." in shown
    assert "4111" not in shown, "neither in the listing nor in the transcript"
    assert 'holdfast_runs{agent="refunds",status="done"} 1' in shown
    assert (tmp_path / "runs.dump").stat().st_size > 0
    assert re.search(r"ok +runs: 1 done", shown), "the restored store"
