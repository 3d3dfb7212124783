// One connection to /ws that tells of tasks, for as long as the page stands.
//
// live({ ids, onTask }) calls onTask(task) with each change, and onTask(null) when to look again
// yourself: every few seconds while some of the tasks cannot be listened to (another owner's), and
// whenever the connection was lost or is there again.
// After a lost connection it comes back by itself, and is told what it has missed: the server
// sends the present state of every task that is newer than the version it is given.

import { isOver as isSessionOver, tell } from "./fresh.js";

const PREFIX = "io.modelcontextprotocol/";
const VERSION = "dev.outlast/version";
const AFTER = "dev.outlast/after";
const ACKNOWLEDGED = "notifications/subscriptions/acknowledged";
const CHANGED = "notifications/tasks";
const CLOSED_FOR_GOOD = 1008; // the session is over
const PAUSE_MS = 500;
const PAUSE_MS_MAX = 15000;
const LOOK_MS = 5000;
const TASKS_MAX = 1000; // of one request
const ENDED = ["completed", "failed", "cancelled"];

// A page that the browser had kept has closed its connections: it comes back as a new one.
addEventListener("pageshow", (event) => event.persisted && location.reload());

export function live({ ids, onTask }) {
  const known = new Map(ids.slice(0, TASKS_MAX).map((id) => [id, 0]));
  const running = new Set(known.keys());
  let socket = null;
  let pause = PAUSE_MS;
  let timer = 0;
  let looking = 0;
  let wasLost = false;
  let isOver = known.size === 0;
  const standing = new AbortController(); // a closed one listens to nothing

  function connect() {
    if (isOver) return;
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const mine = new WebSocket(`${scheme}//${location.host}/ws`);
    socket = mine;
    mine.addEventListener("open", () => mine.send(JSON.stringify(request(known))));
    mine.addEventListener("message", (event) => {
      if (socket === mine && !isOver) take(JSON.parse(event.data));
    });
    mine.addEventListener("close", (event) => {
      if (socket === mine && !isOver) lost(event.code);
    });
  }

  function take(message) {
    if (message.method === ACKNOWLEDGED) {
      pause = PAUSE_MS;
      tell("socket", "live");
      if (wasLost) onTask(null);
      wasLost = false;
      const agreed = message.params?.notifications?.taskIds ?? [];
      if (agreed.length < known.size) lookYourself();
      for (const id of known.keys()) if (!agreed.includes(id)) running.delete(id);
    } else if (message.method === CHANGED) {
      const task = message.params;
      const version = Number(task?._meta?.[VERSION] ?? 0);
      if (known.has(task?.taskId)) known.set(task.taskId, Math.max(version, known.get(task.taskId)));
      if (ENDED.includes(task?.status)) running.delete(task.taskId);
      onTask(task);
    } else if ("error" in message) {
      lookYourself();
    } else if ("result" in message) {
      if (running.size === 0) isOver = true; // nothing more can come, but for what is looked at
      socket.close();
    }
  }

  function lookYourself() {
    if (!looking) looking = setInterval(() => document.hidden || onTask(null), LOOK_MS);
  }

  function lost(code) {
    tell("socket", code === CLOSED_FOR_GOOD ? "over" : "lost");
    if (isSessionOver()) {
      close();
      return;
    }
    wasLost = true;
    onTask(null); // a browser does not tell why it was refused a connection: the answer to a look does
    timer = setTimeout(connect, pause * (0.5 + Math.random() / 2));
    pause = Math.min(pause * 2, PAUSE_MS_MAX);
  }

  function close() {
    isOver = true;
    standing.abort();
    clearTimeout(timer);
    clearInterval(looking);
    socket?.close();
    tell("socket", "live"); // nobody waits for this one any more
  }

  addEventListener("pagehide", close, { signal: standing.signal });
  connect();
  return { close };
}

function request(known) {
  const after = Object.fromEntries([...known].filter(([, version]) => version > 0));
  return {
    jsonrpc: "2.0",
    id: 1,
    method: "subscriptions/listen",
    params: {
      notifications: { taskIds: [...known.keys()] },
      _meta: {
        [`${PREFIX}protocolVersion`]: "2026-07-28",
        [`${PREFIX}clientInfo`]: { name: "outlast-console", version: "1" },
        [`${PREFIX}clientCapabilities`]: { extensions: { [`${PREFIX}tasks`]: {} } },
        [AFTER]: after,
      },
    },
  };
}
