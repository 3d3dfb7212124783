// The inbox, live: new requests appear and are announced, answered ones go. The page works without.
import { part } from "./fresh.js";
import { live } from "./live.js";

const LOOK_MS = 5000; // a new task's question cannot be listened for before its task is known

const list = document.getElementById("inbox");
const news = document.getElementById("inbox-news");
const url = list?.dataset.part;

const known = () => new Set([...list.querySelectorAll("[data-request]")].map((row) => row.dataset.request));
const ids = () => [...new Set([...list.querySelectorAll("[data-task]")].map((row) => row.dataset.task))];

let looking = false;
let connection = null;
let listened = "";

async function look() {
  if (looking || document.hidden) return;
  looking = true;
  const text = await part(url);
  if (text !== null) show(text);
  looking = false;
}

function show(html) {
  const before = known();
  const next = new DOMParser().parseFromString(html, "text/html");
  const after = new Set([...next.querySelectorAll("[data-request]")].map((row) => row.dataset.request));
  const added = [...after].filter((each) => !before.has(each)).length;
  const gone = [...before].filter((each) => !after.has(each)).length;
  if (!added && !gone) return;
  const held = document.activeElement?.closest("[data-request]")?.dataset.request;
  list.replaceChildren(...next.body.childNodes);
  if (held) [...list.querySelectorAll("[data-request]")].find((row) => row.dataset.request === held)?.querySelector("a")?.focus();
  const words = [];
  if (added) words.push(added === 1 ? "1 new request" : `${added} new requests`);
  if (gone) words.push(gone === 1 ? "1 request is no longer open" : `${gone} requests are no longer open`);
  news.textContent = words.join("; ");
  listen();
}

function listen() {
  const wanted = ids();
  if (wanted.join() === listened) return;
  listened = wanted.join();
  connection?.close?.();
  connection = wanted.length ? live({ ids: wanted, onTask: look }) : null;
}

if (url) {
  listen();
  setInterval(look, LOOK_MS);
  document.addEventListener("visibilitychange", look);
}
