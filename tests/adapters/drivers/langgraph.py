"""The driver of the adapter suite for LangGraph."""

import operator
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypedDict

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.tools import StructuredTool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from holdfast import Agent
from holdfast.adapters.langgraph import ToolPolicy, durable
from holdfast.testing.adapter_suite import INPUT_TOKENS, OUTPUT_TOKENS, AgentScript


class State(TypedDict):
    """The messages as they are: the reducer of `MessagesState` gives them random ids."""

    messages: Annotated[list[AnyMessage], operator.add]


class LangGraphDriver:
    """Makes graphs with a node for the model and a `ToolNode`."""

    name: ClassVar[str] = "LangGraph"
    unsupported: ClassVar[Mapping[str, str]] = {}

    def get_answer(self, output: Any) -> str:
        return str(output["messages"][-1].text)

    def make_agent(self, script: AgentScript) -> Agent[Any]:
        async def model(state: State) -> dict[str, Any]:
            replies = [message for message in state["messages"] if isinstance(message, AIMessage)]
            step = await script.reply({str(call["id"]) for reply in replies for call in reply.tool_calls})
            usage = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}
            usage["total_tokens"] = sum(usage.values())
            if isinstance(step, str) and script.stream:
                chat = GenericFakeChatModel(messages=iter([AIMessage(step)]))
                return {"messages": [await chat.ainvoke(state["messages"])]}
            calls = [] if isinstance(step, str) else step
            reply = AIMessage(
                step if isinstance(step, str) else "",
                tool_calls=[{"name": each.tool, "args": {"city": each.city}, "id": each.call_id} for each in calls],
                usage_metadata=usage,
            )
            return {"messages": [reply]}

        tools = [
            StructuredTool.from_function(coroutine=each.function, name=each.name, description=each.name)
            for each in script.tools
        ]
        builder = StateGraph(State)
        builder.add_node("model", model)
        builder.add_node("tools", ToolNode(tools))
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", tools_condition)
        builder.add_edge("tools", "model")
        policies = {each.name: ToolPolicy(each.effect, approval=each.needs_approval) for each in script.tools}
        return durable(
            builder.compile(),
            name=script.name,
            tools=policies,
            stream=script.stream,
            missing_tools=script.missing_tools,
        )


DRIVER = LangGraphDriver()
