"""Lists and resumes interrupted runs, each in its own process."""

import json
import subprocess
import sys

from bench.systems.protocol import Job, Result


def look_and_resume(system: str, job: Job) -> Result:
    """Measure both phases of a recovery, each from the start of its own process, so that neither warms up the other."""
    looked, resumed = (_in_a_new_process(system, {**job, "phase": phase}) for phase in ("look", "resume"))
    measured = looked | resumed
    return {name: measured[name] for name in ("find", "load", "first", "last") if name in measured}


def _in_a_new_process(system: str, job: Job) -> Result:
    command = [sys.executable, "-m", f"bench.systems.{system}", json.dumps(job)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(1)  # its last line on stderr is the reason
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result
