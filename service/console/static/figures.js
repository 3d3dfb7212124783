// The figures anew every few seconds, while somebody looks. A failure leaves the last ones standing.
const EVERY_MS = 5000;
const figures = document.getElementById("figures");

async function refresh() {
  // Not under the hands of who is reading or tabbing in it.
  if (document.hidden || figures.contains(document.activeElement)) return;
  const reply = await fetch(figures.dataset.refresh, { headers: { accept: "text/html" } });
  if (!reply.ok) return;
  const made = new DOMParser().parseFromString(await reply.text(), "text/html");
  figures.replaceChildren(...made.body.childNodes);
}

setInterval(() => refresh().catch(() => {}), EVERY_MS);
