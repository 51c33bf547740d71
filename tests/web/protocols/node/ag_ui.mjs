// The real client of AG-UI: node ag_ui.mjs URL THREAD_ID STEPS, each step a list of a name and arguments.
// Prints the text of the assistant as it arrives, then all messages.
import { HttpAgent } from "@ag-ui/client";

const [url, threadId, steps] = process.argv.slice(2);
const agent = new HttpAgent({ url, threadId });
let runs = 0;
let failed = null;

const subscriber = {
  onTextMessageContentEvent: ({ event, textMessageBuffer }) => {
    console.log(JSON.stringify({ text: (textMessageBuffer ?? "") + event.delta }));
  },
  onRunErrorEvent: ({ event }) => {
    failed = event.message;
  },
};

async function run(parameters = {}) {
  runs += 1;
  await agent.runAgent({ runId: `run-${process.pid}-${runs}`, ...parameters }, subscriber);
}

const actions = {
  send: async (id, content) => {
    agent.addMessage({ id, role: "user", content });
    await run();
  },
  attach: async () => {
    await run();
  },
  approve: async (approved) => {
    const resume = agent.pendingInterrupts.map((interrupt) => ({
      interruptId: interrupt.id,
      status: "resolved",
      payload: { approved },
    }));
    await run({ resume });
  },
};

for (const [name, ...args] of JSON.parse(steps)) {
  try {
    await actions[name](...args);
  } catch (error) {
    failed = String(error);
  }
}
console.log(JSON.stringify({ messages: agent.messages, failed }));
