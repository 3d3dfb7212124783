// The figures anew every few seconds, while somebody looks. A failure leaves the last ones standing.
import { part } from "./fresh.js";

const EVERY_MS = 5000;
const figures = document.getElementById("figures");

let looking = false; // an answer that took long must not be shown after a newer one

async function refresh() {
  // Not under the hands of who is reading or tabbing in it.
  if (looking || document.hidden || figures.contains(document.activeElement)) return;
  looking = true;
  const text = await part(figures.dataset.refresh);
  if (text !== null) show(text);
  looking = false;
}

function show(html) {
  const made = new DOMParser().parseFromString(html, "text/html");
  figures.replaceChildren(...made.body.childNodes);
}

setInterval(refresh, EVERY_MS);
