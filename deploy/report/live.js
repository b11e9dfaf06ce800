"use strict";
// Ask for the page every few seconds and replace the parts that changed. While nothing changes, the
// server answers 304 without a page.
const PAUSE = 2000; // milliseconds
const state = document.getElementById("live");
let tag = "";
let shown = "";

const key = part => part.tagName + part.className + (part.querySelector("h2")?.textContent ?? "");

function update(parent, fresh) {
  const before = new Map([...parent.children].map(part => [key(part), part]));
  let last = null;
  for (const part of [...fresh.children]) {
    const old = before.get(key(part));
    before.delete(key(part));
    if (old) { // the reader's open tables stay open
      const open = [...old.querySelectorAll("details")].map(table => table.open);
      part.querySelectorAll("details").forEach((table, i) => { table.open = Boolean(open[i]); });
    }
    const same = Boolean(old?.isEqualNode(part));
    if (old && !same) old.replaceWith(part);
    if (!old && last) last.after(part);
    if (!old && !last) parent.prepend(part);
    last = same ? old : part;
  }
  for (const gone of before.values()) gone.remove();
}

function say(connected) {
  if (connected === shown) return; // a screen reader reads each change
  shown = connected;
  const now = new Date().toLocaleTimeString();
  state.textContent = connected ? "This page follows the run." : `No connection since ${now}.`;
  state.className = connected ? "live" : "live failed";
}

async function poll() {
  try {
    const answer = await fetch("/", { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
    if (answer.status === 200) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const name of ["header", "main"])
        update(document.querySelector(name), page.querySelector(name));
      document.title = page.title;
      tag = answer.headers.get("ETag") ?? "";
    } else if (answer.status !== 304) {
      throw new Error(answer.statusText);
    }
    say(true);
  } catch {
    say(false);
  }
  setTimeout(poll, PAUSE);
}

poll();
