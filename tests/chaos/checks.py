"""The checks after the chaos."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tests.chaos.agent import STEPS, Effect


def find_faults(outputs: Mapping[str, str], ledger: Sequence[Effect], submitted: Sequence[str]) -> Iterator[str]:
    """Compare the outputs of the submitted runs with the ledger of effects. Yield every fault."""
    counts = Counter((effect.run_id, effect.call_id) for effect in ledger)
    for (run_id, call_id), times in counts.items():
        if times > 1:
            yield f"{call_id} of {run_id} happened {times} times"
    for run_id in submitted:
        if run_id not in outputs:
            yield f"{run_id} did not finish"
            continue
        reported = json.loads(outputs[run_id])
        expected = {f"{name}-{step}" for step, names in enumerate(STEPS) for name in names}
        if reported.keys() != expected:
            yield f"{run_id} reported {sorted(reported)} instead of {sorted(expected)}"
        for call_id, outcome in reported.items():
            if outcome == "done" and not call_id.startswith("look") and counts[run_id, call_id] == 0:
                yield f"{call_id} of {run_id} was reported done and never happened"
    for run_id in {run_id for run_id, _ in counts} - set(submitted):
        yield f"{run_id} was never submitted"
