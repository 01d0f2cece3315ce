// What the page does beyond being read: updates, the reader's own times, keys, copying. Without it everything is still
// there, as it was when it was asked for.
"use strict";
(() => {
  const root = document.body.dataset.root;
  const main = document.getElementById("main");

  // ------------------------------------------------------------------------------------------- times
  const whole = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });
  const short = new Intl.DateTimeFormat("sv-SE", { hour: "2-digit", minute: "2-digit" });
  const exact = new Intl.DateTimeFormat("sv-SE", { timeStyle: "medium" });
  const day = new Intl.DateTimeFormat(undefined, { weekday: "short" });

  function localise(within) {
    for (const each of within.querySelectorAll("time[datetime]")) {
      const at = new Date(each.dateTime);
      if (isNaN(at) || each.classList.contains("ago")) continue;
      if (each.classList.contains("hm")) each.textContent = short.format(at);
      else if (each.classList.contains("ms")) each.textContent = `${exact.format(at)}.${`${at.getMilliseconds()}`.padStart(3, "0")}`;
      else each.textContent = whole.format(at);
    }
    for (const each of within.querySelectorAll(".x")) {
      const times = [...each.children].map((time) => new Date(time.dateTime));
      if (times.length > 1 && times.at(-1) - times[0] > 2 * 86400e3) {
        times.forEach((at, n) => (each.children[n].textContent = day.format(at)));
      }
    }
    for (const each of within.querySelectorAll("rect[data-at] > title")) {
      const at = new Date(each.parentNode.dataset.at);
      each.textContent = each.textContent.replace(/^.*? UTC:/, `${day.format(at)} ${short.format(at)}:`);
    }
  }

  // ---------------------------------------------------------------------------------------- updates
  // The new page is laid over the old one node by node, so that what is open, typed, ticked or focused stays.
  function lay(old, fresh) {
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || (old.id || "") !== (fresh.id || "")) {
      old.replaceWith(fresh);
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    if (old.hasAttribute("data-keep") || old === document.activeElement && old.matches("input, textarea")) return;
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !(name === "open" && old.matches("details"))) old.removeAttribute(name);
    }
    for (const { name, value } of [...fresh.attributes]) {
      if (old.getAttribute(name) !== value && !(name === "open" && old.matches("details"))) old.setAttribute(name, value);
    }
    const known = new Map();
    for (const child of old.children) if (child.id) known.set(child.id, child);
    const wanted = new Set([...fresh.children].map((child) => child.id).filter(Boolean));
    let at = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      const match = child.id ? known.get(child.id) : like(at, child);
      if (!match) {
        old.insertBefore(child, at);
        continue;
      }
      if (child.id) {
        if (match !== at) old.insertBefore(match, at);
      } else {
        while (at !== match) {  // what stood between is no longer there
          const next = at.nextSibling;
          if (!wanted.has(at.id)) at.remove();
          at = next;
        }
      }
      at = match.nextSibling;
      lay(match, child);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  // The next of the old nodes that can become this one. A text is not looked for beyond an element.
  function like(at, child) {
    for (; at; at = at.nextSibling) {
      if (at.nodeName === child.nodeName && !at.id) return at;
      if (child.nodeType === Node.TEXT_NODE && at.nodeType !== Node.TEXT_NODE) return null;
    }
    return null;
  }

  const button = document.getElementById("live");
  let source = null, paused = false, timer = null, updates = 0;

  function tell(state, words) {
    if (!button) return;
    button.className = state;
    button.lastElementChild.textContent = words;
  }

  function listen() {
    if (source || paused || document.hidden || !main.hasAttribute("data-live")) return;
    source = new EventSource(location.href);
    source.addEventListener("open", () => tell("on", "live"));
    source.addEventListener("main", (event) => {
      const parsed = new DOMParser().parseFromString(`<main>${event.data}</main>`, "text/html");
      const fresh = document.importNode(parsed.querySelector("main"), true);
      for (const each of main.attributes) fresh.setAttribute(each.name, each.value);
      localise(fresh);
      decorate(fresh);
      fresh.dataset.updates = ++updates;
      lay(main, fresh);
      tell("on", "live");
    });
    source.addEventListener("error", () => {
      tell("off", "no answer");
      if (source && source.readyState === EventSource.CLOSED) {
        hush();
        timer = setTimeout(listen, 10000);
      }
    });
  }

  function hush() {
    clearTimeout(timer);
    if (source) source.close();
    source = null;
  }

  if (button && main.hasAttribute("data-live")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      paused = !paused;
      if (paused) hush(); else listen();
      tell(paused ? "" : "on", paused ? "paused" : "live");
    });
    document.addEventListener("visibilitychange", () => (document.hidden ? hush() : listen()));
    addEventListener("pagehide", hush);
    addEventListener("pageshow", listen);
    listen();
  }

  // ------------------------------------------------------------------------------------------ copying
  function decorate(within) {
    if (!navigator.clipboard) return;
    for (const each of within.querySelectorAll("code.copy, pre.json")) {
      if (each.querySelector("button")) continue;
      const text = each.textContent;
      const copy = document.createElement("button");
      copy.type = "button";
      copy.className = "quiet";
      copy.textContent = "copy";
      copy.dataset.text = text;
      each.append(" ", copy);
    }
  }
  document.addEventListener("click", async (event) => {
    const copy = event.target.closest("button[data-text]");
    if (!copy) return;
    await navigator.clipboard.writeText(copy.dataset.text);
    copy.textContent = "copied";
    setTimeout(() => (copy.textContent = "copy"), 1500);
  });

  // ------------------------------------------------------------------------------------------- forms
  document.addEventListener("change", (event) => {
    if (event.target.id !== "every") return;
    for (const each of document.querySelectorAll("input[name=target][form=bulk]")) each.checked = event.target.checked;
  });

  // Completion of the last term of a search; a datalist completes only the whole.
  const search = document.getElementById("q"), terms = document.getElementById("terms");
  if (search && terms) {
    const known = [...terms.options].map((option) => option.value);
    search.addEventListener("input", () => {
      const begun = search.value.lastIndexOf(" ") + 1;
      const before = search.value.slice(0, begun), last = search.value.slice(begun);
      const found = known.filter((term) => last && term.startsWith(last) && term !== last).slice(0, 20);
      terms.replaceChildren(...found.map((term) => new Option("", before + term)));
    });
  }

  const unfinished = document.getElementById("go-on");
  if (unfinished) {
    const go = setTimeout(() => unfinished.requestSubmit(), 400);
    unfinished.querySelector("a").addEventListener("click", () => clearTimeout(go));
  }

  // -------------------------------------------------------------------------------------------- keys
  let leader = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      if ((event.ctrlKey || event.metaKey) && event.key === "k") {
        event.preventDefault();
        document.getElementById("find")?.focus();
      }
      return;
    }
    if (event.target.closest("input, textarea, select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === "/") {
      event.preventDefault();
      (search || document.getElementById("find"))?.focus();
    } else if (event.key === "g") {
      leader = Date.now();
    } else if (Date.now() - leader < 1500) {
      leader = 0;
      document.querySelector(`nav.pages a[data-key="${CSS.escape(event.key)}"]`)?.click();
    } else if (event.key === "p") {
      button?.click();
    }
  });

  localise(document);
  decorate(document);
})();
