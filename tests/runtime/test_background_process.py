"""A worker that a shell put into the background: SIGINT is ignored there, and SIGTERM is not."""

import signal
import subprocess
import sys
from pathlib import Path

FLEET = Path(__file__).parents[2] / "examples" / "fleet.py"


def test_a_worker_in_the_background_ignores_ctrl_c_and_drains_on_sigterm(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, FLEET, "worker"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    worker.send_signal(signal.SIGINT)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    worker.stdout.close()
