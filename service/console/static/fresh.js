// Pieces of the page anew, and one line at its top for a reader who may be looking at old ones.
//
// Who brings news tells how it stands: "live", "lost" while it tries again, "over" once the session
// is. The worst is shown.

const UNAUTHORIZED = 401;
const ANSWER_MS = 20000; // an answer that takes longer is lost: who waits for it asks no other
const WORDS = {
  lost: "The connection is lost; trying again. What you see may be old.",
  over: "Your session is over. ",
};
const line = document.getElementById("fresh");
const told = new Map();
let shown = "live";

export function tell(who, state) {
  if (isOver()) return;
  told.set(who, state);
  const worst = ["over", "lost"].find((each) => [...told.values()].includes(each)) ?? "live";
  if (worst === shown) return;
  shown = worst;
  line.textContent = WORDS[worst] ?? "";
  if (worst === "over") line.append(signIn());
}

export function isOver() {
  return shown === "over";
}

// The text of a piece of a page, or null: then what is shown stays.
export async function part(url) {
  if (isOver()) return null;
  try {
    const reply = await fetch(url, {
      credentials: "same-origin",
      headers: { accept: "text/html" },
      signal: AbortSignal.timeout(ANSWER_MS), // of its body too
    });
    if (reply.status === UNAUTHORIZED) tell("looks", "over");
    else tell("looks", reply.status < 500 ? "live" : "lost");
    return reply.ok ? await reply.text() : null;
  } catch {
    tell("looks", "lost");
    return null;
  }
}

function signIn() {
  const link = document.createElement("a");
  link.href = `/console/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`;
  link.textContent = "Sign in again to see changes.";
  return link;
}
