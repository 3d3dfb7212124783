// The slider through a task's versions. Without this it is a form, and links beside it.
// A slider that stands at the end follows the task; one that was moved back stays where it is.

import { part } from "./fresh.js";
import { live } from "./live.js";

const VERSION = "dev.outlast/version";
const form = document.querySelector("[data-slider]");
if (form) begin(form);

function begin(form) {
  const url = form.dataset.slider;
  const range = form.querySelector("input[type=range]");
  const output = form.querySelector("output");
  const said = document.querySelector("[data-said]");
  const state = document.querySelector("[data-part=state]");
  const isWhole = document.querySelector("[data-part=timeline]") !== null;
  const isPaged = new URLSearchParams(location.search).has("upto");
  let wanted = 0; // the newest request: an answer to an older one is dropped

  form.querySelector("button").remove();
  form.addEventListener("submit", (event) => event.preventDefault());
  range.addEventListener("input", () => {
    label();
    show(Number(range.value));
  });

  function label() {
    output.textContent = `${range.value} of ${range.max}`;
    range.setAttribute("aria-valuetext", `Version ${range.value} of ${range.max}`);
    steps(Number(range.value), Number(range.max));
  }

  async function show(version) {
    const mine = ++wanted;
    await new Promise((done) => setTimeout(done, 80)); // a slider is dragged over many
    if (mine !== wanted) return;
    const text = await part(`${url}/versions/${version}?part=1`);
    if (mine !== wanted) return;
    if (text === null) {
      said.textContent = `Version ${version} could not be loaded.`;
      return;
    }
    replace(state, text);
    said.textContent = `Version ${version} of ${range.max} is shown.`;
  }

  function steps(version, newest) {
    const nav = document.querySelector("[data-steps]");
    const links = [];
    if (version > 1) links.push([1, "First"], [version - 1, "Before"]);
    if (version < newest) links.push([version + 1, "After"], [newest, "Newest"]);
    nav.replaceChildren(
      ...links.map(([to, text]) => {
        const link = document.createElement("a");
        link.href = `${url}/versions/${to}`;
        link.textContent = text;
        return link;
      }),
    );
  }

  function grow(newest) {
    if (follow(newest) && isWhole && !isPaged) refresh();
  }

  function follow(newest) {
    if (!(newest > Number(range.max))) return false;
    const isAtEnd = range.value === range.max;
    range.max = String(newest);
    if (isAtEnd) {
      range.value = range.max;
      show(newest);
    }
    label();
    return true;
  }

  async function look() {
    if (isWhole && !isPaged) return refresh();
    const text = await part(`${url}?part=1`);
    if (text !== null) grow(newestIn(parsed(text)));
  }

  let isRefreshing = false;
  let isStale = false;
  async function refresh() {
    isStale = true;
    if (isRefreshing) return;
    isRefreshing = true;
    while (isStale) {
      isStale = false;
      const text = await part(`${url}?part=1`);
      if (text !== null) follow(refreshed(text));
    }
    isRefreshing = false;
  }

  live({
    ids: [form.dataset.task],
    // Without a task nobody tells us of it: we look again ourselves.
    onTask: (task) => (task ? grow(Number(task._meta?.[VERSION])) : look()),
  });
}

// The page's parts in place of the older ones; the newest version that they tell of.
function refreshed(text) {
  const made = parsed(text);
  for (const name of ["head", "actions", "values", "timeline"]) {
    const place = document.querySelector(`[data-part=${name}]`);
    const fresh = made.querySelector(`[data-part=${name}]`);
    // Not under the hands of who is reading or tabbing in it.
    if (place && fresh && !place.contains(document.activeElement)) {
      place.replaceChildren(...fresh.childNodes);
    }
  }
  return newestIn(made);
}

function newestIn(made) {
  return Number(made.querySelector("[data-newest]")?.dataset.newest);
}

function replace(place, text) {
  place.replaceChildren(...parsed(text).body.childNodes);
}

function parsed(text) {
  return new DOMParser().parseFromString(text, "text/html");
}
