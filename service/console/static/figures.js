// The figures anew every few seconds, while somebody looks. A failure leaves the last ones standing.
import { part } from "./fresh.js";

const EVERY_MS = 5000;
const figures = document.getElementById("figures");

async function refresh() {
  // Not under the hands of who is reading or tabbing in it.
  if (document.hidden || figures.contains(document.activeElement)) return;
  const text = await part(figures.dataset.refresh);
  if (text === null) return;
  const made = new DOMParser().parseFromString(text, "text/html");
  figures.replaceChildren(...made.body.childNodes);
}

setInterval(refresh, EVERY_MS);
