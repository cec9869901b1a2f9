// Keeps a page up to date: on each new round of the console the page is loaded again, and the parts with data-live
// are replaced. Without this script the page is the same, as of when it was loaded.
"use strict";
(() => {
  if (!document.getElementById("live-at") || !window.EventSource) return;
  let busy = false;
  async function refresh() {
    // A table that is read by keyboard, or a text that is being selected, must not be replaced below the reader.
    const selection = window.getSelection();
    if (busy || document.hidden || (selection && !selection.isCollapsed)) return;
    busy = true;
    try {
      const answer = await fetch(window.location.href, { headers: { "X-Refresh": "1" }, redirect: "error" });
      if (!answer.ok) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const next = fresh.getElementById(part.id);
        if (!next || part.isEqualNode(next) || part.contains(document.activeElement)) continue;
        part.replaceWith(document.adoptNode(next));
      }
    } catch (error) {
      console.warn("the page is not up to date", error);
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
  window.addEventListener("pagehide", () => events && events.close());
  if (!document.hidden) {
    events = new EventSource("/events");
    events.onmessage = refresh;
  }
})();
