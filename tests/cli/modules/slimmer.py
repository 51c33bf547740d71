"""The sampler after a deploy that took its gate away."""

from sample import agent as before  # type: ignore[import-not-found]

from holdfast import Agent, App

agent = Agent(name="sampler", model=before.model, tools=[each for each in before.tools if each.name != "gate"])
app = App([agent])
