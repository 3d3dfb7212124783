// The list of tasks, live: rows change as their tasks do, and new tasks appear and are announced.
import { part } from "./fresh.js";
import { live } from "./live.js";

const LOOK_MS = 5000; // a new task cannot be listened for before it is known
const SOON_MS = 250; // changes that come together are looked at together

const list = document.getElementById("tasks");
const news = document.getElementById("tasks-news");

let looking = false;
let again = false;
let timer = 0;
let connection = null;
let listened = "";

const ids = (within) => [...within.querySelectorAll("[data-task]")].map((row) => row.dataset.task);

function soon() {
  if (!timer) timer = setTimeout(look, SOON_MS);
}

async function look() {
  clearTimeout(timer);
  timer = 0;
  again = looking;
  if (looking || document.hidden) return;
  looking = true;
  const text = await part(list.dataset.part);
  if (text !== null) show(text);
  looking = false;
  if (again) soon();
}

function show(html) {
  const next = new DOMParser().parseFromString(html, "text/html");
  const before = new Set(ids(list));
  const added = ids(next).filter((id) => !before.has(id)).length;
  if (next.body.innerHTML.trim() !== list.innerHTML.trim()) replace(next.body);
  if (added) news.textContent = added === 1 ? "1 new task" : `${added} new tasks`;
  listen();
}

function replace(body) {
  const held = document.activeElement;
  const href = list.contains(held) ? held.getAttribute("href") : null;
  const task = list.contains(held) ? held.closest("[data-task]")?.dataset.task : null;
  const isRegion = list.contains(held) && held.classList.contains("scroll");
  const left = list.querySelector(".scroll")?.scrollLeft ?? 0;
  list.replaceChildren(...body.childNodes);
  const region = list.querySelector(".scroll");
  if (region) region.scrollLeft = left;
  const links = [...list.querySelectorAll("a")].filter((each) => each.getAttribute("href") === href);
  const same = links.find((each) => each.closest("[data-task]")?.dataset.task === task);
  if (href) same?.focus();
  else if (isRegion) region?.focus();
}

function listen() {
  const wanted = ids(list);
  const named = [...wanted].sort().join();
  if (named === listened) return;
  listened = named;
  connection?.close();
  connection = wanted.length ? live({ ids: wanted, onTask: soon }) : null;
}

if (list) {
  listen();
  setInterval(look, LOOK_MS);
  document.addEventListener("visibilitychange", look);
}
