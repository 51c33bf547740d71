"""The sampler after a deploy that took its gate away, and its last phase."""

from sample import agent as before  # type: ignore[import-not-found]
from sample import phased as phased_before

from holdfast import Agent, App

agent = Agent(name="sampler", model=before.model, tools=[each for each in before.tools if each.name != "gate"])
phased = Agent(name="phased", model=before.model, tools=before.tools, phases=phased_before.phases[:1])
app = App([agent, phased])
