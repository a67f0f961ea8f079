// This script marks a value or a line in all columns. All its data is in the page: the name of a value is the text of
// its element, the origin of a line is its data-o, and the function of both is the data-f of an element around them.
(() => {
  const columns = [...document.querySelectorAll(".col")];
  const status = document.getElementById("selected");
  const idle = status.textContent;
  const values = new Map(); // function → name → elements
  const lines = new Map(); // line of the source → elements
  let marked = []; // [element, class] pairs of the selection
  let current = "";
  let cursor = null, picked = null; // the line and the value that the keyboard has reached

  const list = (map, key) => map.get(key) || map.set(key, []).get(key);
  for (const v of document.querySelectorAll(".text var")) {
    const f = v.closest(".f").dataset.f;
    if (!values.has(f)) values.set(f, new Map());
    list(values.get(f), v.textContent).push(v);
  }
  for (const e of document.querySelectorAll("[data-o]")) list(lines, e.dataset.o).push(e);

  function mark(e, name) {
    e.classList.add(name);
    marked.push([e, name]);
  }

  function clear() {
    for (const [e, name] of marked) e.classList.remove(name);
    marked = [];
    current = "";
    status.textContent = idle;
  }

  // begin clears the page for a new selection. It returns false if this was selected already: a second click removes
  // the selection.
  function begin(key) {
    const again = current === key;
    clear();
    current = again ? "" : key;
    // A page in a frame, or one with an opaque origin, is not allowed to do that.
    try { history.replaceState(null, "", again ? "#" : "#" + key); } catch (e) { /* only the link is lost */ }
    return !again;
  }

  const defines = (v) => /^(:| =)/.test(v.nextSibling ? v.nextSibling.textContent : "");

  // Derived names have dots: %x.g comes from %x, and %x.g.s comes from %x.g.
  const related = (a, b) => a.startsWith(b + ".") || b.startsWith(a + ".");

  function selectValue(f, name, near) {
    if (!begin("value=" + encodeURIComponent(f + ":" + name))) return;
    for (const [other, elements] of values.get(f)) {
      if (other === name) {
        for (const v of elements) {
          mark(v, "hit");
          if (defines(v)) mark(v, "def");
        }
      } else if (related(other, name)) {
        for (const v of elements) mark(v, "kin");
      }
    }
    status.textContent = name + " in " + f + ": " + count("hit") + derived();
    reveal(["hit", "kin"], near);
  }

  function selectLine(origin, near) {
    if (!begin("line=" + origin)) return;
    for (const e of lines.get(origin)) mark(e, "from");
    status.textContent = "line " + origin + ": " + count("from");
    reveal(["from"], near);
  }

  const within = (col, name) => marked.filter(([e, n]) => n === name && col.contains(e)).map(([e]) => e);

  // count says how often the selection occurs in each column.
  function count(name) {
    const parts = columns.map((c) => [c.dataset.name, within(c, name).length]).filter(([, n]) => n > 0);
    return parts.map(([c, n]) => c + " " + n + "×").join(", ");
  }

  function derived() {
    const names = new Set(marked.filter(([, n]) => n === "kin").map(([e]) => e.textContent));
    return names.size ? "; related: " + [...names].slice(0, 12).join(" ") + (names.size > 12 ? " …" : "") : "";
  }

  // reveal scrolls each column so that the selection is visible, at the height of near.
  function reveal(classes, near) {
    for (const col of columns) {
      if (near && col.contains(near)) continue;
      const text = col.querySelector(".text");
      const found = classes.map((c) => within(col, c)[0]).find((e) => e);
      if (!found || col.classList.contains("folded")) continue;
      const box = text.getBoundingClientRect(), at = found.getBoundingClientRect();
      if (at.top >= box.top && at.bottom <= box.bottom) continue;
      const goal = near && near.closest(".text") ? near.getBoundingClientRect().top : box.top + box.height / 3;
      text.scrollTop += at.top - goal;
    }
  }

  // functionOf finds the function of a value that is named without one.
  function functionOf(name) {
    for (const [f, names] of values) if (names.has(name)) return f;
    return undefined;
  }

  function fold(col) {
    const folded = col.classList.toggle("folded");
    col.querySelector(".head").setAttribute("aria-expanded", String(!folded));
  }

  document.addEventListener("click", (event) => {
    const head = event.target.closest(".head");
    if (head) return fold(head.closest(".col"));
    if (event.target.closest(".picture")) return; // frame.js handles it
    const v = event.target.closest("var");
    if (v) {
      const part = v.closest(".f");
      const f = part ? part.dataset.f : functionOf(v.textContent);
      if (f !== undefined && values.get(f)) return selectValue(f, v.textContent, v);
    }
    if (!getSelection().isCollapsed) return; // the user is selecting text
    const line = event.target.closest("[data-o]");
    if (line) selectLine(line.dataset.o, line);
  });

  // step moves to the next or previous part of the selection in a column.
  function step(col, by) {
    const found = [...within(col, "hit"), ...within(col, "from")];
    if (!found.length) return;
    const at = found.findIndex((e) => e.classList.contains("now"));
    for (const e of found) e.classList.remove("now");
    const next = found[at < 0 ? (by > 0 ? 0 : found.length - 1) : (at + by + found.length) % found.length];
    mark(next, "now");
    next.scrollIntoView({ block: "center", inline: "nearest" });
  }

  // walk selects the next or previous line of a column that came from the source.
  function walk(col, by) {
    const found = [...col.querySelectorAll(".text p[data-o]")];
    if (!found.length) return;
    const at = found.indexOf(cursor);
    cursor = found[at < 0 ? (by > 0 ? 0 : found.length - 1) : Math.min(Math.max(at + by, 0), found.length - 1)];
    if (current !== "line=" + cursor.dataset.o) selectLine(cursor.dataset.o, cursor);
    for (const e of within(col, "now")) e.classList.remove("now");
    mark(cursor, "now");
    cursor.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  // pick selects the next value of the line that walk reached.
  function pick(col) {
    if (!cursor || !col.contains(cursor)) return;
    const found = [...cursor.querySelectorAll("var")];
    if (!found.length) return;
    const v = found[(found.findIndex((e) => e === picked) + 1) % found.length];
    picked = v;
    const f = v.closest(".f").dataset.f;
    if (current !== "value=" + encodeURIComponent(f + ":" + v.textContent)) selectValue(f, v.textContent, v);
    mark(v, "now");
  }

  function move(by) {
    const at = columns.findIndex((c) => c.contains(document.activeElement));
    const next = columns[at < 0 ? 0 : Math.min(Math.max(at + by, 0), columns.length - 1)];
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const col = columns.find((c) => c.contains(document.activeElement)) || columns[0];
    const text = col.querySelector(".text");
    switch (event.key) {
      case "ArrowLeft": move(-1); break;
      case "ArrowRight": move(1); break;
      case "ArrowUp": text.scrollTop -= 60; break;
      case "ArrowDown": text.scrollTop += 60; break;
      case "PageUp": text.scrollTop -= text.clientHeight * 0.9; break;
      case "PageDown": text.scrollTop += text.clientHeight * 0.9; break;
      case "Home": text.scrollTop = 0; break;
      case "End": text.scrollTop = text.scrollHeight; break;
      case "Enter": {
        const note = document.activeElement.closest("#side article[data-o]");
        if (note) { selectLine(note.dataset.o, note); break; }
        if (document.activeElement !== col) return;
        fold(col);
        break;
      }
      case "j": walk(col, 1); break;
      case "k": walk(col, -1); break;
      case "v": pick(col); break;
      case "n": step(col, 1); break;
      case "p": step(col, -1); break;
      case "w": document.body.classList.toggle("nowrap"); break;
      case "s": document.body.classList.toggle("alone"); break;
      case "Escape": if (current) begin(current); break;
      default: return;
    }
    event.preventDefault();
  });

  // decode reads a part of the address. In an address typed by hand, the % of a name may not be escaped.
  function decode(s) {
    try { return decodeURIComponent(s); } catch (e) { return s; }
  }

  // follow selects what the address names: #value=%x.g, #value=mlp:%x.g, #line=8.
  function follow() {
    const [, kind, rest] = location.hash.match(/^#(value|line)=(.*)$/) || [];
    if (kind === "line" && lines.has(rest) && current !== "line=" + rest) selectLine(rest);
    if (kind !== "value") return;
    for (const wanted of [decode(rest), rest]) {
      const at = wanted.indexOf(":");
      const name = wanted.slice(at + 1), f = at < 0 ? functionOf(name) : wanted.slice(0, at);
      if (!values.has(f) || !values.get(f).has(name)) continue;
      if (current !== "value=" + encodeURIComponent(f + ":" + name)) selectValue(f, name);
      return;
    }
  }
  addEventListener("hashchange", follow);
  follow();
})();
