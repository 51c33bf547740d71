"""What has to hold after the chaos."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tests.chaos.agent import STEPS, Effect


def find_faults(outputs: Mapping[str, str], ledger: Sequence[Effect], submitted: Sequence[str]) -> Iterator[str]:
    """Everything that is wrong with the outputs of the submitted runs, beside what really happened."""
    happened = Counter((effect.run_id, effect.call_id) for effect in ledger)
    for (run_id, call_id), times in happened.items():
        if times > 1:
            yield f"{call_id} of {run_id} happened {times} times"
    for run_id in submitted:
        if run_id not in outputs:
            yield f"{run_id} came to no end"
            continue
        told = json.loads(outputs[run_id])
        expected = {f"{name}-{step}" for step, names in enumerate(STEPS) for name in names}
        if told.keys() != expected:
            yield f"{run_id} told of {sorted(told)} instead of {sorted(expected)}"
        for call_id, outcome in told.items():
            if outcome == "done" and not call_id.startswith("look") and happened[run_id, call_id] == 0:
                yield f"{call_id} of {run_id} was reported done and never happened"
    for run_id in {run_id for run_id, _ in happened} - set(submitted):
        yield f"{run_id} was never submitted"
