"""Looking at interrupted runs and going on with them, each in a process of its own."""

import json
import subprocess
import sys

from bench.systems.protocol import Job, Result


def look_and_resume(system: str, job: Job) -> Result:
    """Both phases of a recovery, each counted from the start of its own process, so that neither warms up the other."""
    looked, resumed = (_in_a_new_process(system, {**job, "phase": phase}) for phase in ("look", "resume"))
    measured = looked | resumed
    return {name: measured[name] for name in ("find", "load", "first", "last") if name in measured}


def _in_a_new_process(system: str, job: Job) -> Result:
    command = [sys.executable, "-m", f"bench.systems.{system}", json.dumps(job)]
    shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    result: Result = json.loads(shown.splitlines()[-1])
    return result
