// Keeps a page up to date: on each new round of the console the page is loaded again, and the parts with data-live
// are replaced. Without this script the page is the same, as of when it was loaded.
"use strict";
(() => {
  if (!document.getElementById("live-at") || !window.EventSource) return;
  // A page whose form was submitted is left: what it shows may be gone before the next page is there.
  const LEAVING_MS = 30_000;
  let busy = false;
  let leaving = false;
  let reading = null;
  async function refresh() {
    // A table that is read by keyboard, or a text that is being selected, must not be replaced below the reader.
    const selection = window.getSelection();
    if (busy || leaving || document.hidden || (selection && !selection.isCollapsed)) return;
    busy = true;
    reading = new AbortController();
    try {
      const options = { headers: { "X-Refresh": "1" }, redirect: "error", signal: reading.signal };
      const answer = await fetch(window.location.href, options);
      if (!answer.ok) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const next = fresh.getElementById(part.id);
        if (!next || part.isEqualNode(next) || part.contains(document.activeElement)) continue;
        if (part.querySelector("input:checked")) continue;  // rows that somebody has chosen
        part.replaceWith(document.adoptNode(next));
      }
    } catch (error) {
      if (!leaving) console.warn("the page is not up to date", error);
    } finally {
      busy = false;
    }
  }
  // Browsers open few connections to one server: a window that nobody sees gives its own back.
  let events = null;
  function listen() {
    if (document.hidden && events) {
      events.close();
      events = null;
    } else if (!document.hidden && !events) {
      events = new EventSource("/events");
      events.onmessage = refresh;
      refresh();
    }
  }
  document.addEventListener("visibilitychange", listen);
  document.addEventListener("submit", () => {
    leaving = true;
    if (reading) reading.abort();
    setTimeout(() => { leaving = false; }, LEAVING_MS);  // the answer never came
  });
  window.addEventListener("pageshow", () => { leaving = false; });
  window.addEventListener("pagehide", () => events && events.close());
  if (!document.hidden) {
    events = new EventSource("/events");
    events.onmessage = refresh;
  }
})();
