// This script draws the timeline of a run and its tables. All its data is in the page.
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const ev = data.events, lanes = data.lanes, names = data.names, fills = data.fills, details = data.details, collectives = data.collectives || [];

// time formats nanoseconds with about three digits.
function time(ns) {
  const us = ns / 1000;
  if (data.virtual) return `step ${Math.round(ns)}`;
  if (us >= 1e7) return (us / 1e6).toFixed(1) + " s";
  if (us >= 1e4) return (us / 1e3).toFixed(1) + " ms";
  if (us >= 100) return us.toFixed(0) + " µs";
  return us.toFixed(1) + " µs";
}
// bytes formats a size as the command line does.
function bytes(n) {
  if (n === null || n === undefined) return "?";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let u = 0;
  for (; n >= 1024 && u < 4; u++) n /= 1024;
  return (u ? n.toFixed(1) : n) + " " + units[u];
}
const micro = (us) => us === null || us === undefined ? "?" : time(us * 1000);

// Events are sorted by lane, then by start. first[l] is the index of the first event of lane l.
const first = [];
for (let l = 0, i = 0; l <= lanes.length; l++) {
  while (i < ev.lane.length && ev.lane[i] < l) i++;
  first.push(i);
}
// No event in the view can start earlier before it than the longest event of its lane.
const longest = lanes.map((_, l) => {
  let most = 0;
  for (let i = first[l]; i < first[l + 1]; i++) most = Math.max(most, ev.dur[i]);
  return most;
});
const members = collectives.map(() => []);
for (let i = 0; i < ev.group.length; i++) if (ev.group[i] >= 0 && members[ev.group[i]]) members[ev.group[i]].push(i);
const onPath = new Set(data.path || []);

// lowerBound returns the first event of lane l that starts at or after t.
function lowerBound(l, t) {
  let lo = first[l], hi = first[l + 1];
  while (lo < hi) {
    const mid = (lo + hi) >> 1;
    if (ev.start[mid] < t) lo = mid + 1; else hi = mid;
  }
  return lo;
}

const canvas = $("time"), wrap = $("wrap"), pen = canvas.getContext("2d");
const AXIS = 22, ROW = 20, GAP = 8;
let LABEL = 150; // narrower in a narrow window
const laneY = [];
let height = AXIS;
for (let l = 0; l < lanes.length; l++) {
  if (l > 0 && lanes[l].rank !== lanes[l - 1].rank) height += GAP;
  laneY.push(height);
  height += ROW;
}
height += 4;
const whole = Math.max(data.span, 1);
let from = 0, to = whole, chosen = -1, hover = -1, hits = [], hit = -1, hitSet = new Set(), scheduled = false, colours = {}, hatch = null;

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const c of ["paper", "ink", "quiet", "rule", "hit", "hit-ink", "wait", "wait-line", "gone", "path", "lane", "hot", "on-span"])
    colours[c] = style.getPropertyValue("--" + c).trim();
  // The colours of operations are those of the legend.
  for (const chip of document.querySelectorAll(".legend rect")) colours[chip.getAttribute("class")] = getComputedStyle(chip).fill;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const p = tile.getContext("2d");
  p.fillStyle = colours.wait;
  p.fillRect(0, 0, 6, 6);
  p.strokeStyle = colours["wait-line"];
  p.beginPath();
  p.moveTo(-1, 7); p.lineTo(7, -1);
  p.moveTo(-1, 1); p.lineTo(1, -1);
  p.moveTo(5, 7); p.lineTo(7, 5);
  p.stroke();
  hatch = pen.createPattern(tile, "repeat");
}

function redraw() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => { scheduled = false; draw(); });
}

let width = 0;
function size() {
  width = wrap.clientWidth;
  LABEL = width < 600 ? 96 : 150;
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  redraw();
}
const x = (t) => LABEL + (t - from) / (to - from) * (width - LABEL);
const at = (px) => from + (px - LABEL) / (width - LABEL) * (to - from);

const fillOf = (i) => colours[fills[ev.name[i]]] || colours.quiet;

function draw() {
  pen.fillStyle = colours.paper;
  pen.fillRect(0, 0, width, height);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  drawAxis();
  pen.save();
  pen.beginPath();
  pen.rect(LABEL, 0, width - LABEL, height);
  pen.clip();
  for (let l = 0; l < lanes.length; l++) drawLane(l);
  if ($("arrows").checked) drawArrows();
  drawEdges();
  pen.restore();
  drawLabels();
}

function drawAxis() {
  const span = to - from, steps = Math.max(2, Math.floor((width - LABEL) / 110));
  let step = Math.pow(10, Math.floor(Math.log10(span / steps)));
  for (const m of [1, 2, 5, 10]) if (span / (step * m) <= steps) { step *= m; break; }
  pen.fillStyle = colours.quiet;
  pen.strokeStyle = colours.rule;
  pen.beginPath();
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
    const px = Math.round(x(t)) + .5;
    pen.moveTo(px, AXIS - 5); pen.lineTo(px, height);
    if (px < width - 50) pen.fillText(time(t), px + 3, AXIS / 2);
  }
  pen.stroke();
}

function drawLabels() {
  pen.fillStyle = colours.paper;
  pen.fillRect(0, 0, LABEL - 1, height);
  for (let l = 0; l < lanes.length; l++) {
    const newRank = l === 0 || lanes[l].rank !== lanes[l - 1].rank;
    pen.fillStyle = colours.ink;
    pen.font = "600 11px system-ui, sans-serif";
    if (newRank) pen.fillText("rank " + lanes[l].rank, 8, laneY[l] + ROW / 2);
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = colours.quiet;
    pen.fillText(lanes[l].name.slice(0, LABEL < 150 ? 5 : 14), LABEL < 150 ? 54 : 66, laneY[l] + ROW / 2);
  }
}

function drawLane(l) {
  const y = laneY[l], h = ROW - 3;
  pen.fillStyle = colours.lane;
  pen.fillRect(LABEL, y, width - LABEL, h);
  const end = first[l + 1], dim = hitSet.size > 0, path = $("path").checked;
  let drawn = -1, last = null;
  for (let i = lowerBound(l, from - longest[l]); i < end && ev.start[i] <= to; i++) {
    if (ev.start[i] + ev.dur[i] < from) continue;
    const a = Math.max(x(ev.start[i]), LABEL - 2), b = Math.min(x(ev.start[i] + ev.dur[i]), width + 2);
    const marked = i === chosen || i === hover || hitSet.has(i) || path && onPath.has(i);
    const colour = fillOf(i);
    // An event in a pixel that already has its colour changes nothing.
    if (b - drawn < 1 && colour === last && !marked) continue;
    const w = Math.max(b - a, .7);
    pen.globalAlpha = dim && !hitSet.has(i) ? .3 : 1;
    if (ev.wait[i] > 0) {
      const split = Math.min(x(ev.start[i] + ev.wait[i]), width + 2);
      pen.fillStyle = hatch;
      if (split > a) pen.fillRect(a, y, Math.max(split - a, .7), h);
      pen.fillStyle = colour;
      if (b > split) pen.fillRect(Math.max(split, a), y, Math.max(b - Math.max(split, a), .7), h);
    } else {
      pen.fillStyle = colour;
      pen.fillRect(a, y, w > 3 ? w - .5 : w, h);
    }
    drawn = b; last = colour;
    if (w > 34) {
      pen.save();
      pen.beginPath(); pen.rect(a, y, w, h); pen.clip();
      pen.fillStyle = ev.wait[i] > 0 && x(ev.start[i] + ev.wait[i]) - a > 8 ? colours.ink : colours["on-span"];
      pen.fillText(names[ev.name[i]], a + 4, y + h / 2);
      pen.restore();
    }
    if (path && onPath.has(i)) outline(a, y, w, h, colours.path, 2);
    if (hitSet.has(i)) outline(a, y, w, h, colours.hit, 2);
    if (i === chosen || i === hover) outline(a, y, w, h, colours.ink, 2);
  }
  pen.globalAlpha = 1;
}

function outline(a, y, w, h, colour, thick) {
  pen.strokeStyle = colour;
  pen.lineWidth = thick;
  pen.strokeRect(a + 1, y + 1, Math.max(w - 2, 1), h - 2);
  pen.lineWidth = 1;
}

// Arrows lead from the rank that came last to the ranks that waited.
function drawArrows() {
  const shown = [];
  for (let g = 0; g < collectives.length && shown.length <= 150; g++) {
    const t = collectives[g].arrive;
    if (collectives[g].late && t >= from && t <= to) shown.push(g);
  }
  const all = shown.length <= 150 ? shown : [];
  if (chosen >= 0 && ev.group[chosen] >= 0 && !all.includes(ev.group[chosen])) all.push(ev.group[chosen]);
  for (const g of all) {
    const px = x(collectives[g].arrive);
    const late = members[g].find((i) => lanes[ev.lane[i]].rank === (collectives[g].late || {}).rank);
    if (late === undefined) continue;
    const y0 = laneY[ev.lane[late]] + ROW / 2;
    pen.strokeStyle = pen.fillStyle = colours.gone;
    pen.globalAlpha = chosen >= 0 && ev.group[chosen] === g ? 1 : .55;
    for (const i of members[g]) if (i !== late) arrow(px, y0, px, laneY[ev.lane[i]] + ROW / 2, false);
    pen.globalAlpha = 1;
  }
}

function arrow(x0, y0, x1, y1, dashed) {
  const bend = x0 === x1 ? Math.min(10, Math.abs(y1 - y0) / 4) : 0;
  pen.setLineDash(dashed ? [5, 4] : []);
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.quadraticCurveTo((x0 + x1) / 2 + bend * 2, (y0 + y1) / 2, x1, y1);
  pen.stroke();
  pen.setLineDash([]);
  const back = Math.atan2(y1 - (y0 + y1) / 2, x1 - (x0 + x1) / 2 - bend * 2);
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x1 - 6 * Math.cos(back - .5), y1 - 6 * Math.sin(back - .5));
  pen.lineTo(x1 - 6 * Math.cos(back + .5), y1 - 6 * Math.sin(back + .5));
  pen.fill();
}

// Edges show the order that is missing in a counterexample.
function drawEdges() {
  for (const e of data.edges || []) {
    pen.strokeStyle = pen.fillStyle = colours.gone;
    pen.lineWidth = 2;
    const a = e.from, b = e.to;
    arrow(x(ev.start[a] + ev.dur[a]), laneY[ev.lane[a]] + ROW / 2, x(ev.start[b]), laneY[ev.lane[b]] + ROW / 2, true);
    for (const i of [a, b]) outline(x(ev.start[i]), laneY[ev.lane[i]], x(ev.start[i] + ev.dur[i]) - x(ev.start[i]), ROW - 3, colours.gone, 3);
    pen.lineWidth = 1;
  }
}

function under(px, py) {
  if (px < LABEL) return -1;
  let l = lanes.length - 1;
  while (l >= 0 && laneY[l] > py) l--;
  if (l < 0 || py > laneY[l] + ROW) return -1;
  const t = at(px), slack = (to - from) / (width - LABEL) * 2;
  let best = -1;
  for (let i = lowerBound(l, t - longest[l] - slack); i < first[l + 1] && ev.start[i] <= t + slack; i++)
    if (ev.start[i] + ev.dur[i] >= t - slack && (best < 0 || ev.dur[i] < ev.dur[best])) best = i;
  return best;
}

function describe(i) {
  const l = lanes[ev.lane[i]];
  let text = `${names[ev.name[i]]}: ${time(ev.dur[i])}, from ${time(ev.start[i])}; rank ${l.rank}, ${l.name}`;
  if (ev.wait[i] >= 0) text += `\nwaited ${time(ev.wait[i])}, then transfer of ${time(ev.dur[i] - ev.wait[i])}`;
  const c = collectives[ev.group[i]];
  if (c && c.late) text += `\nrank ${c.late.rank} came last, because ${why(c.late)}`;
  const d = details[ev.detail[i]];
  if (d && d !== names[ev.name[i]]) text += "\n" + d;
  return text;
}

// why returns the reason why a rank was late, and the collective since which the ranks are compared.
function why(late) { return (late.since ? `after ${late.since}: ` : "") + late.after; }

function choose(i) {
  chosen = i;
  $("selected").textContent = i >= 0 ? describe(i) : "";
  redraw();
}

function view(a, b) {
  const least = Math.min(20, whole);
  let span = Math.min(Math.max(b - a, least), whole * 1.04);
  const middle = (a + b) / 2;
  from = Math.max(middle - span / 2, -whole * .02);
  to = from + span;
  if (to > whole * 1.02) { to = whole * 1.02; from = Math.max(to - span, -whole * .02); }
  redraw();
}
const zoom = (factor, t) => view(t - (t - from) * factor, t + (to - t) * factor);
const move = (share) => view(from + (to - from) * share, to + (to - from) * share);
const all = () => view(-whole * .005, whole * 1.005);

// show moves the view to an event, which then takes at most a third of the width.
function show(i, room) {
  const d = Math.max(ev.dur[i], room || 0, 50);
  view(ev.start[i] - d, ev.start[i] + ev.dur[i] + d);
  const y = laneY[ev.lane[i]];
  if (y < wrap.scrollTop || y > wrap.scrollTop + wrap.clientHeight - ROW) wrap.scrollTop = y - wrap.clientHeight / 2;
  choose(i);
}
function showCollective(g) {
  const m = members[g];
  if (!m || m.length === 0) return;
  const lo = Math.min(...m.map((i) => ev.start[i])), hi = Math.max(...m.map((i) => ev.start[i] + ev.dur[i]));
  const late = collectives[g].late, i = m.find((i) => late && lanes[ev.lane[i]].rank === late.rank) ?? m[0];
  choose(i);
  view(lo - (hi - lo) * .2, hi + (hi - lo) * .2);
  wrap.scrollIntoView({ block: "nearest" });
}

function search(text) {
  hits = []; hit = -1;
  const words = text.trim().toLowerCase();
  if (words) {
    const nameHit = names.map((n) => n.toLowerCase().includes(words)), detailHit = details.map((n) => n.toLowerCase().includes(words));
    for (let i = 0; i < ev.name.length; i++) if (nameHit[ev.name[i]] || detailHit[ev.detail[i]]) hits.push(i);
    hits.sort((a, b) => ev.start[a] - ev.start[b]);
  }
  hitSet = new Set(hits);
  $("hits").textContent = words ? `${hits.length} found` : "";
  redraw();
}
function step(by) {
  if (hits.length === 0) return;
  hit = (hit + by + hits.length) % hits.length;
  $("hits").textContent = `${hit + 1} of ${hits.length}`;
  show(hits[hit], (to - from) / 3);
}

// ---- tables

function fill(table, columns, rows, go, sortBy, falling) {
  const head = document.createElement("tr");
  let order = sortBy, down = falling;
  const most = 200;
  const body = table.tBodies[0];
  const build = () => {
    if (order !== null) {
      const c = columns[order];
      rows.sort((a, b) => {
        const p = c.key(a), q = c.key(b);
        const less = p === null || p === undefined ? 1 : q === null || q === undefined ? -1 : p < q ? -1 : p > q ? 1 : 0;
        return down ? -less : less;
      });
    }
    body.textContent = "";
    for (const r of rows.slice(0, most)) {
      const tr = document.createElement("tr");
      if (go) {
        tr.dataset.go = "";
        tr.tabIndex = 0;
        tr.onclick = () => go(r);
        tr.onkeydown = (e) => { if (e.key === "Enter") go(r); };
      }
      for (const c of columns) {
        const td = document.createElement("td");
        if (c.kind) td.className = c.kind;
        td.textContent = c.text(r);
        tr.append(td);
      }
      body.append(tr);
    }
    [...head.children].forEach((th, k) => {
      if (k === order) th.setAttribute("aria-sort", down ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    });
  };
  columns.forEach((c, k) => {
    const th = document.createElement("th"), b = document.createElement("button");
    if (c.kind) th.className = "left";
    b.textContent = c.name;
    b.onclick = () => { down = order === k ? !down : !c.kind; order = k; build(); };
    th.append(b);
    head.append(th);
  });
  table.tHead.append(head);
  build();
  return rows.length > most ? `the first ${most} of ${rows.length} in this order` : "";
}

function tables() {
  const waits = (c) => c.waits.reduce((s, ns) => s + ns, 0);
  $("shown").textContent = fill($("collectives"), [
    { name: "collective", kind: "left", key: (c) => c.index, text: (c) => c.label },
    { name: "group", kind: "left", key: (c) => c.group, text: (c) => c.group },
    { name: "begins", key: (c) => c.start, text: (c) => time(c.start) },
    { name: "size", key: (c) => c.bytes, text: (c) => bytes(c.bytes) },
    { name: "transfer", key: (c) => c.transfer_us, text: (c) => micro(c.transfer_us) },
    { name: "bus bandwidth", key: (c) => c.bus_gb_s || 0, text: (c) => c.bus_gb_s ? c.bus_gb_s.toFixed(1) + " GB/s" : "" },
    { name: "skew", key: (c) => c.skew_us, text: (c) => micro(c.skew_us) },
    { name: "waits, all ranks", key: waits, text: (c) => c.transfer_us === null ? "?" : time(waits(c)) },
    { name: "last", key: (c) => c.late ? c.late.rank : -1, text: (c) => c.late ? "rank " + c.late.rank : "" },
    { name: "because", kind: "why", key: (c) => c.late ? c.late.after : "", text: (c) => c.late ? why(c.late) : "" },
  ], collectives.slice(), (c) => showCollective(c.index), 7, true);
  const critical = data.critical;
  if (critical) {
    $("pathsum").textContent = `${micro(critical.span_us)}: ` + critical.by_kind.map((k) => `${k.kind} ${micro(k.us)}`).join(", ");
    fill($("critical"), [
      { name: "begins", key: (p) => p.start_us, text: (p) => micro(p.start_us) },
      { name: "took", key: (p) => p.us, text: (p) => micro(p.us) },
      { name: "rank", key: (p) => p.rank, text: (p) => "rank " + p.rank },
      { name: "kind", kind: "left", key: (p) => p.kind, text: (p) => p.kind },
      { name: "what", kind: "left", key: (p) => p.name, text: (p) => p.name },
    ], critical.path.slice(), (p) => { const a = p.start_us * 1000, d = Math.max(p.us * 1000, 50); view(a - d, a + 2 * d); wrap.scrollIntoView({ block: "nearest" }); }, 1, true);
  }
}

function exposed() {
  const idle = new Map((data.idle || []).map((x) => [x.rank, x])), part = (r) => idle.get(r.rank) || {};
  const column = (name, of) => ({ name, key: of, text: (r) => micro(of(r)) });
  fill($("exposed"), [
    { name: "rank", key: (r) => r.rank, text: (r) => "rank " + r.rank },
    column("compute", (r) => r.compute_us),
    column("of it over communication", (r) => r.hidden_us),
    column("exposed communication", (r) => r.total_us),
    column("of it waiting", (r) => r.wait_us),
    column("of it transfer", (r) => r.transfer_us),
    ...((data.exposed || []).some((r) => r.unknown_us > 0) ? [column("of it one of both", (r) => r.unknown_us)] : []),
    column("idle: host", (r) => part(r).host_us),
    column("idle: a peer's signal", (r) => part(r).signal_us),
    column("idle: another stream", (r) => part(r).event_us),
    column("idle: launching", (r) => part(r).launch_us),
    column("idle: cause not recorded", (r) => part(r).unknown_us),
  ], data.exposed || [], null, 0, false);
}

function heat() {
  const c = $("heat"), p = c.getContext("2d"), told = collectives.filter((x) => x.transfer_us !== null);
  const ranks = [...new Set(lanes.map((l) => l.rank))];
  if (told.length === 0 || ranks.length === 0) { c.parentElement.parentElement.hidden = true; return; }
  const left = 70, w = Math.max(c.parentElement.clientWidth - left - 4, 100), cell = w / told.length, h = 16;
  const ratio = window.devicePixelRatio || 1;
  c.width = (left + w) * ratio;
  c.height = ranks.length * h * ratio;
  c.style.height = ranks.length * h + "px";
  p.scale(ratio, ratio);
  let most = 1;
  for (const x of told) for (const ns of x.waits) most = Math.max(most, ns);
  $("longest").textContent = time(most);
  p.font = "11px system-ui, sans-serif";
  p.textBaseline = "middle";
  const row = new Map(ranks.map((r, k) => [r, k]));
  p.fillStyle = colours.quiet;
  for (const [r, k] of row) p.fillText("rank " + r, 6, k * h + h / 2);
  p.fillStyle = colours.hot;
  // If several collectives share a pixel, the longest wait is shown.
  const columns = Math.min(told.length, Math.floor(w)), image = ranks.map(() => new Float64Array(columns));
  told.forEach((x, n) => {
    const at = Math.floor(n * columns / told.length);
    x.waits.forEach((ns, k) => {
      const cells = image[row.get(x.ranks[k])];
      cells[at] = Math.max(cells[at], ns);
    });
  });
  const wide = w / columns;
  image.forEach((cells, r) => cells.forEach((ns, n) => {
    if (ns === 0) return;
    p.globalAlpha = Math.sqrt(ns / most);
    p.fillRect(left + n * wide, r * h + 1, Math.max(wide - (wide > 4 ? 1 : 0), 1), h - 2);
  }));
  p.globalAlpha = 1;
  const of = (e) => {
    const box = c.getBoundingClientRect();
    return [told[Math.floor((e.clientX - box.left - left) / cell)], ranks[Math.floor((e.clientY - box.top) / h)]];
  };
  c.onmousemove = (e) => {
    const [x, r] = of(e), k = x ? x.ranks.indexOf(r) : -1;
    tip(e, k >= 0 ? `${x.label}: rank ${r} waited ${time(x.waits[k])}` : "");
  };
  c.onmouseleave = () => tip(null, "");
  c.onclick = (e) => { const [x] = of(e); if (x) showCollective(x.index); };
}

function tip(e, text) {
  const t = $("tip");
  t.style.display = text ? "block" : "none";
  if (!text) return;
  t.textContent = text;
  t.style.left = Math.min(e.clientX + 14, window.innerWidth - t.offsetWidth - 8) + "px";
  t.style.top = Math.min(e.clientY + 14, window.innerHeight - t.offsetHeight - 8) + "px";
}

// ---- input

let drag = null;
canvas.onmousedown = (e) => { drag = { x: e.offsetX, from, to, moved: false }; };
window.addEventListener("mouseup", () => { drag = null; });
canvas.onmousemove = (e) => {
  if (drag) {
    const by = (drag.x - e.offsetX) / (width - LABEL) * (drag.to - drag.from);
    drag.moved = drag.moved || Math.abs(drag.x - e.offsetX) > 3;
    view(drag.from + by, drag.to + by);
    return;
  }
  const i = under(e.offsetX, e.offsetY);
  if (i !== hover) { hover = i; redraw(); }
  tip(e, i >= 0 ? describe(i) : "");
};
canvas.onmouseleave = () => { hover = -1; tip(null, ""); redraw(); };
canvas.onclick = (e) => { if (!drag || !drag.moved) choose(under(e.offsetX, e.offsetY)); };
canvas.ondblclick = (e) => { const i = under(e.offsetX, e.offsetY); if (i >= 0) show(i); };
canvas.addEventListener("wheel", (e) => {
  if (e.shiftKey) return;
  e.preventDefault();
  if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) move(e.deltaX / 1000);
  else zoom(Math.pow(1.0015, e.deltaY), at(e.offsetX));
}, { passive: false });

$("search").oninput = (e) => search(e.target.value);
$("search").onkeydown = (e) => {
  if (e.key === "Enter") { step(e.shiftKey ? -1 : 1); e.preventDefault(); }
  if (e.key === "Escape") { e.target.value = ""; search(""); canvas.focus(); }
  e.stopPropagation();
};
$("arrows").onchange = redraw;
$("path").onchange = redraw;
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target.tagName === "INPUT" && e.target.type === "search") return;
  const middle = (from + to) / 2;
  const keys = {
    ArrowLeft: () => move(-.2), ArrowRight: () => move(.2), ArrowUp: () => zoom(.7, middle), ArrowDown: () => zoom(1 / .7, middle),
    a: () => move(-.2), d: () => move(.2), w: () => zoom(.7, middle), s: () => zoom(1 / .7, middle), "+": () => zoom(.7, middle), "-": () => zoom(1 / .7, middle),
    0: all, Home: all, "/": () => $("search").focus(), n: () => step(1), p: () => step(-1),
    c: () => { $("path").checked = !$("path").checked; redraw(); },
    Escape: () => { $("search").value = ""; search(""); choose(-1); },
  };
  if (!keys[e.key] || e.target.tagName === "TR") return;
  keys[e.key]();
  e.preventDefault();
});

for (const p of document.querySelectorAll(".text p[data-go]")) {
  p.onclick = () => { $("search").value = `:${p.dataset.line}:`; search($("search").value); step(1); wrap.scrollIntoView({ block: "nearest" }); };
}
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); redraw(); if ($("heat")) heat(); });
new ResizeObserver(size).observe(wrap);
readColours();
size();
all();
draw(); // now, not with the next frame
// The program opens at the last line that a refutation names, or at the line that took the most time.
const hottest = [...document.querySelectorAll(".text p.bad")].pop() || document.querySelector(".text p.hot");
if (hottest) {
  const box = hottest.closest(".text");
  box.scrollTop += hottest.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 2;
}
if ($("collectives")) {
  tables();
  exposed();
  heat();
}
document.body.dataset.ready = Math.round(performance.now());
