// The real client of the Vercel AI SDK: node vercel_ai.mjs API CHAT_ID STEPS, each step a list of a name and arguments.
// Prints the text of the assistant as it arrives, then all messages.
import { AbstractChat, DefaultChatTransport } from "ai";

class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => {
    this.messages = this.messages.concat(message);
    print(message);
  };
  popMessage = () => {
    this.messages = this.messages.slice(0, -1);
  };
  replaceMessage = (index, message) => {
    this.messages = this.messages.with(index, message);
    print(message);
  };
  snapshot = (value) => structuredClone(value);
}

function print(message) {
  if (message.role !== "assistant") return;
  const text = message.parts.filter((part) => part.type === "text").map((part) => part.text).join("|");
  console.log(JSON.stringify({ text }));
}

class Chat extends AbstractChat {
  constructor(init) {
    super({ ...init, state: new State() });
  }
}

const [api, id, steps] = process.argv.slice(2);
const chat = new Chat({ id, transport: new DefaultChatTransport({ api }), onError: (error) => console.error(error) });

const actions = {
  load: async () => {
    chat.messages = await (await fetch(`${api}/${id}/messages`)).json();
  },
  send: async (messageId, text) => {
    await chat.sendMessage({ id: messageId, role: "user", parts: [{ type: "text", text }] });
  },
  resume: async () => {
    await chat.resumeStream();
  },
  approve: async (approved) => {
    const parts = chat.messages.at(-1).parts.filter((part) => part.state === "approval-requested");
    for (const part of parts) await chat.addToolApprovalResponse({ id: part.approval.id, approved });
    await chat.sendMessage();
  },
};

for (const [name, ...args] of JSON.parse(steps)) await actions[name](...args);
console.log(JSON.stringify({ messages: chat.messages, status: chat.status }));
