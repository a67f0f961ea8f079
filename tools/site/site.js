"use strict";
{
  const base = document.currentScript.dataset.base;
  const input = document.querySelector("#search input");
  const results = document.querySelector("#results");
  const most = 20;

  // load adds the index to the page when it is first needed, and calls f when it is there.
  let loading;
  const load = (f) => {
    if (window.siteIndex) return f();
    if (!loading) {
      loading = document.createElement("script");
      loading.src = base + "/index.js";
      document.head.append(loading);
    }
    loading.addEventListener("load", f, { once: true });
  };

  // score rates a section: 0 if a word is missing, more for words and for the whole phrase in headings.
  const score = (section, phrase, words) => {
    section.low ??= [section.h, section.t, section.x].map((s) => s.toLowerCase());
    const [heading, title, text] = section.low;
    let sum = 0;
    for (const word of words) {
      const found = (heading.includes(word) ? 12 : 0) + (title.includes(word) ? 4 : 0) + (text.includes(word) ? 1 : 0);
      if (!found) return 0;
      sum += found;
    }
    return sum + (heading.includes(phrase) ? 60 : 0) + (text.includes(phrase) ? 30 : 0) + (title.includes(phrase) ? 10 : 0);
  };

  // marked returns text with the words marked.
  const marked = (text, words) => {
    const out = document.createDocumentFragment();
    const low = text.toLowerCase();
    for (let at = 0; at < text.length; ) {
      let next = text.length, length = 0;
      for (const word of words) {
        const i = low.indexOf(word, at);
        if (i >= 0 && (i < next || (i === next && word.length > length))) [next, length] = [i, word.length];
      }
      out.append(text.slice(at, next));
      if (length) {
        const mark = document.createElement("mark");
        mark.textContent = text.slice(next, next + length);
        out.append(mark);
      }
      at = next + length;
    }
    return out;
  };

  // excerpt returns the text around the first place of the phrase, or of a word.
  const excerpt = (section, phrase, words) => {
    const text = section.x, low = section.low[2];
    const at = Math.max(0, [phrase, ...words].map((w) => low.indexOf(w)).find((i) => i >= 0) ?? 0);
    const from = at < 60 ? 0 : text.indexOf(" ", at - 60) + 1;
    const part = text.slice(from, from + 200);
    return (from ? "… " : "") + part + (from + 200 < text.length ? " …" : "");
  };

  const show = () => {
    const phrase = input.value.trim().toLowerCase().replace(/\s+/g, " ");
    results.hidden = !phrase;
    if (!phrase) return;
    const words = [...new Set(phrase.split(" "))];
    const hits = window.siteIndex.map((s) => [score(s, phrase, words), s]).filter(([n]) => n > 0);
    hits.sort(([a], [b]) => b - a);
    const about = document.createElement("p");
    about.textContent = hits.length === 0 ? "No page has all of these words." : hits.length === 1 ? "1 section" : hits.length <= most ? `${hits.length} sections` : `${hits.length} sections, the best ${most}`;
    results.replaceChildren(about);
    for (const [, s] of hits.slice(0, most)) {
      const a = document.createElement("a"), name = document.createElement("b"), text = document.createElement("span");
      a.href = base + "/" + s.p + "#" + s.a;
      name.append(marked(s.h === s.t ? s.t : s.t + " › " + s.h, words));
      text.append(marked(excerpt(s, phrase, words), words));
      a.append(name, document.createElement("br"), text);
      results.append(a);
    }
  };

  input.addEventListener("focus", () => load(() => {}));
  input.addEventListener("input", () => load(show));
  input.addEventListener("focus", () => input.value && load(show));
  results.addEventListener("click", (e) => { if (e.target.closest("a")) results.hidden = true; });
  document.addEventListener("click", (e) => { if (!e.target.closest("#search")) results.hidden = true; });
  document.addEventListener("keydown", (e) => {
    const typing = /^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName);
    if (e.key === "/" && !typing && !e.ctrlKey && !e.metaKey && !e.altKey) {
      e.preventDefault();
      input.focus();
      return;
    }
    if (results.hidden || !e.target.closest("#search")) return;
    const places = [input, ...results.querySelectorAll("a")];
    const at = places.indexOf(document.activeElement);
    if (e.key === "Escape") {
      input.focus();
      results.hidden = true;
    } else if (e.key === "ArrowDown" || e.key === "ArrowUp") {
      e.preventDefault();
      places[(at + (e.key === "ArrowDown" ? 1 : places.length - 1)) % places.length].focus();
    } else if (e.key === "Enter" && at === 0 && places[1]) {
      places[1].click();
    }
  });

  // Blocks of code can be copied; of a block with commands, the commands.
  if (navigator.clipboard) {
    for (const pre of document.querySelectorAll("main pre")) {
      const box = document.createElement("div"), button = document.createElement("button");
      box.className = "code";
      button.textContent = "Copy";
      button.addEventListener("click", async () => {
        const commands = [...pre.querySelectorAll("b")].map((b) => b.textContent).join("\n");
        await navigator.clipboard.writeText(commands || pre.textContent);
        button.textContent = "Copied";
        setTimeout(() => (button.textContent = "Copy"), 1500);
      });
      pre.replaceWith(box);
      box.append(pre, button);
    }
  }
}
