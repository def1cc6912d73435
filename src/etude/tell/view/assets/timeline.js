// The timeline: rows of slices on a canvas. Data: a JSON head, then streams of varints (see view/embedded.py).
const SORTS = ["other", "compute", "communication", "memory", "host", "other", "copy"];
const STACK = [1, 6, 2, 3, 4];  // from the bottom of the strip to its top; others are with the last
const TOP_NAMES = 8;
const GUTTER = 148, AXIS = 24, ROW = { lane: 20, deep: 13 }, HEAD = 22;

class Timeline {
  constructor(host, bytes) {
    this.host = host;
    this.decode(bytes);
    this.view = $(".view", host);
    this.canvas = $("canvas.main", host);
    this.over = $("canvas.over", host);
    this.from = 0;
    this.to = this.span;
    this.pick = null;
    this.query = "";
    this.showPath = false;
    const ranks = new Set(this.rows.map((r) => r.group));
    this.groups = [...ranks];
    this.chosen = new Set(this.first?.length ? this.groups.filter((g) => this.first.includes(g)) : this.groups);
    this.area = null;
    this.hasBoth = this.rows.some((r) => r.device) && this.rows.some((r) => !r.device);
    this.showHost = !this.hasBoth || ranks.size <= 2;  // with many ranks the devices are what one compares
    this.layout();
    this.bind();
    redraws.push((whole) => this.resize(whole));
    new ResizeObserver(() => this.resize()).observe(host);
    this.resize();
  }

  decode(bytes) {
    const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
    Object.assign(this, { names: head.names, rows: head.rows, span: Math.max(1, head.span_ns), hasPath: head.has_path, first: head.first });
    let at = 4 + length;
    const stream = (n) => {
      const out = new Float64Array(n);
      for (let i = 0; i < n; i++) {
        let v = 0, m = 1, b;
        do { b = bytes[at++]; v += (b & 127) * m; m *= 128; } while (b & 128);
        out[i] = v;
      }
      return out;
    };
    const total = head.rows.reduce((n, r) => n + r.count, 0);
    const gap = stream(total), dur = stream(total), name = stream(total), bits = stream(total), count = stream(total), busy = stream(total);
    const node = head.has_nodes ? stream(total) : null;
    this.start = new Float64Array(total);
    this.end = new Float64Array(total);
    this.name = Int32Array.from(name, (v) => v - 1);
    this.sort = Uint8Array.from(bits, (v) => v & 7);
    this.critical = Uint8Array.from(bits, (v) => v >> 3 & 1);
    this.count = count;
    this.busy = busy;
    this.node = node && new Float64Array(total);
    let i = 0;
    for (const row of this.rows) {
      row.first = i;
      row.last = i + row.count;
      let before = 0, id = 0;
      for (; i < row.last; i++) {
        const g = gap[i];
        this.start[i] = before + (g % 2 ? -(g + 1) / 2 : g / 2);
        before = this.end[i] = this.start[i] + dur[i];
        if (node) { id += node[i] % 2 ? -(node[i] + 1) / 2 : node[i] / 2; this.node[i] = id; }
        if (count[i] === 1) busy[i] = dur[i];
      }
    }
    // A label has little room: what a C++ signature is about, without its namespaces and arguments.
    this.label = this.names.map((n) => /^void |^\w+(<.*>)?\([A-Za-z].*\)$/.test(n) ? n.replace(/^void /, "").replaceAll("(anonymous namespace)::", "").replace(/^(\w+::)+/, "").replace(/\(.*$/, "") : n);
    this.shade = this.names.map((n) => { let h = 0; for (let k = 0; k < n.length; k++) h = h * 31 + n.charCodeAt(k) | 0; return (h >>> 8) % 5; });
  }

  layout() {
    let y = 0, group = null;
    this.heads = [];
    for (const row of this.rows) {
      row.hidden = (!row.device && !this.showHost) || !this.chosen.has(row.group);
      if (row.hidden) { row.y = -1e9; row.h = 0; continue; }
      if (row.group !== group) { group = row.group; this.heads.push({ y, label: group }); y += HEAD; }
      row.y = y;
      row.h = row.deep || row.thin ? ROW.deep : ROW.lane;
      y += row.h + (row.gap ? 5 : 1);
    }
    this.height = y + 6;
  }

  colours() {
    const style = getComputedStyle(root);
    const get = (n) => style.getPropertyValue(`--${n}`).trim();
    this.c = Object.fromEntries(["ink", "soft", "faint", "line", "card", "track", "critical"].map((n) => [n, get(n)]));
    const towards = root.dataset.theme === "dark" ? "#000" : "#fff";
    const probe = document.createElement("i");
    document.body.append(probe);
    this.fill = SORTS.map((s) => [0, 8, 16, 24, 32].map((p) => {
      probe.style.color = `color-mix(in srgb, ${get(s)} ${100 - p}%, ${towards})`;
      return getComputedStyle(probe).color;
    }));
    probe.remove();
    // Words in a slice are black or white, whichever is easier to read on its colour.
    this.word = this.fill.map((tones) => tones.map((colour) => {
      const [r, g, b] = colour.match(/[\d.]+/g).map(Number).map((v) => { const s = v > 1 || !colour.startsWith("color") ? v / 255 : v; return s <= .03928 ? s / 12.92 : ((s + .055) / 1.055) ** 2.4; });
      return .2126 * r + .7152 * g + .0722 * b > .3 ? "#10151c" : "#ffffff";
    }));
  }

  resize(whole = false) {
    this.colours();
    const dpr = Math.min(devicePixelRatio || 1, 2);
    this.width = this.host.clientWidth;
    this.seen = whole === true ? Math.min(this.height + AXIS, 4000) : Math.min(this.height + AXIS, Math.max(160, Math.min(innerHeight * .66, 620)));
    const fit = (canvas, h) => {
      canvas.width = Math.round(this.width * dpr);
      canvas.height = Math.round(h * dpr);
      canvas.style.width = `${this.width}px`;
      canvas.style.height = `${h}px`;
      canvas.getContext("2d").setTransform(dpr, 0, 0, dpr, 0, 0);
    };
    fit(this.canvas, this.seen);
    fit(this.over, 34);
    $(".spacer", this.host).style.height = `${Math.max(0, this.height + AXIS - this.seen)}px`;
    this.drawOver();
    this.draw();
  }

  get plot() { return Math.max(10, this.width - GUTTER); }
  x(ns) { return GUTTER + (ns - this.from) / (this.to - this.from) * this.plot; }
  ns(x) { return this.from + (x - GUTTER) / this.plot * (this.to - this.from); }

  // First slice of a row that ends after `ns`.
  after(row, ns) {
    let a = row.first, b = row.last;
    while (a < b) { const m = a + b >> 1; if (this.end[m] <= ns) a = m + 1; else b = m; }
    return a;
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  draw() {
    const g = this.canvas.getContext("2d"), c = this.c, top = this.view.scrollTop, { width: w, seen: h } = this;
    g.clearRect(0, 0, w, h);
    g.fillStyle = c.card;
    g.fillRect(0, 0, w, h);
    g.textBaseline = "middle";
    const marks = this.ticks();
    g.strokeStyle = c.line;
    g.beginPath();
    for (const t of marks) { const x = Math.round(this.x(t)) + .5; g.moveTo(x, AXIS); g.lineTo(x, h); }
    g.stroke();
    g.save();
    g.beginPath();
    g.rect(0, AXIS, w, h - AXIS);
    g.clip();
    for (const row of this.rows) {
      const y = AXIS + row.y - top;
      if (!row.hidden && y + row.h >= AXIS && y <= h) this.drawRow(g, row, y);
    }
    g.fillStyle = c.card;
    g.fillRect(0, AXIS, GUTTER - 1, h);
    for (const row of this.rows) {
      const y = AXIS + row.y - top;
      if (row.hidden || y + row.h < AXIS || y > h || !row.label) continue;
      g.font = "12px system-ui, sans-serif";
      g.fillStyle = c.soft;
      g.textAlign = "right";
      g.fillText(this.cut(g, row.label, GUTTER - 20), GUTTER - 10, y + row.h / 2 + .5);
    }
    for (const head of this.heads) {
      const y = AXIS + head.y - top;
      if (y + HEAD < AXIS || y > h) continue;
      g.fillStyle = c.card;
      g.fillRect(0, y, w, HEAD);
      g.strokeStyle = c.line;
      g.beginPath(); g.moveTo(0, y + .5); g.lineTo(w, y + .5); g.stroke();
      g.font = "600 12.5px system-ui, sans-serif";
      g.fillStyle = c.ink;
      g.textAlign = "left";
      g.fillText(head.label, 12, y + HEAD / 2 + 1);
    }
    if (this.area) this.drawArea(g, top);
    g.restore();
    g.strokeStyle = c.line;
    g.beginPath(); g.moveTo(GUTTER - .5, 0); g.lineTo(GUTTER - .5, h); g.moveTo(0, AXIS - .5); g.lineTo(w, AXIS - .5); g.stroke();
    g.font = "11.5px system-ui, sans-serif";
    g.fillStyle = c.soft;
    g.textAlign = "center";
    for (const t of marks) { const x = this.x(t); if (x > GUTTER + 12 && x < w - 24) g.fillText(time(t), x, AXIS / 2); }
    g.textAlign = "right";
    g.fillText(`${time(this.to - this.from, 3)} in view`, GUTTER - 10, AXIS / 2);
  }

  drawArea(g, top) {
    const { from, to, y0, y1 } = this.area, a = Math.max(GUTTER, this.x(from)), b = Math.max(a, Math.min(this.width, this.x(to)));
    g.fillStyle = this.c.critical;
    g.globalAlpha = .12;
    g.fillRect(a, AXIS + y0 - top, b - a, y1 - y0);
    g.globalAlpha = 1;
    g.strokeStyle = this.c.critical;
    g.strokeRect(a + .5, AXIS + y0 - top + .5, Math.max(1, b - a - 1), y1 - y0 - 1);
  }

  drawRow(g, row, y) {
    const { start, end, sort, name, count, critical } = this, right = this.width, scale = this.plot / (this.to - this.from);
    const hit = this.matches;
    g.font = "11px system-ui, sans-serif";
    g.textAlign = "left";
    let pixel = -1, pixelSort = -1;
    for (let i = this.after(row, this.from); i < row.last; i++) {
      const x0 = GUTTER + (start[i] - this.from) * scale;
      if (x0 > right) break;
      const x1 = GUTTER + (end[i] - this.from) * scale, a = Math.max(GUTTER, x0), width = x1 - a;
      const mark = critical[i] && this.showPath, found = hit && hit[name[i]];
      if (width < 1 && !mark && !found) {  // slices that share a pixel are drawn once
        const p = a | 0;
        if (p === pixel && sort[i] === pixelSort) continue;
        pixel = p; pixelSort = sort[i];
      }
      const tone = name[i] < 0 ? 0 : this.shade[name[i]];
      g.globalAlpha = hit && !found ? .18 : count[i] > 1 ? .45 + .55 * Math.min(1, this.busy[i] / Math.max(1, end[i] - start[i])) : 1;
      g.fillStyle = this.fill[sort[i]][tone];
      const drawn = Math.max(width - (width > 3 ? 1 : 0), .8);
      g.fillRect(a, y, drawn, row.h);
      g.globalAlpha = 1;
      if (mark) { g.fillStyle = this.c.critical; g.fillRect(a, y + row.h - 4, Math.max(drawn, 1.5), 4); }
      if (i === this.pick) { g.strokeStyle = this.c.ink; g.lineWidth = 2; g.strokeRect(a + 1, y + 1, Math.max(2, drawn - 2), row.h - 2); g.lineWidth = 1; }
      if (width > 34 && row.h > 12 && name[i] >= 0) {
        g.fillStyle = this.word[sort[i]][tone];
        g.fillText(this.cut(g, this.label[name[i]], width - 9), a + 4, y + row.h / 2 + .5);
      }
    }
  }

  cut(g, text, width) {
    if (text.length > 160) text = text.slice(0, 160);
    if (g.measureText(text).width <= width) return text;
    let a = 0, b = text.length;
    while (a < b) { const m = a + b + 1 >> 1; if (g.measureText(`${text.slice(0, m)}…`).width <= width) a = m; else b = m - 1; }
    return a ? `${text.slice(0, a)}…` : "";
  }

  ticks() {
    const want = (this.to - this.from) / Math.max(2, this.plot / 120), power = 10 ** Math.floor(Math.log10(want));
    const step = Math.max(1, [1, 2, 5, 10].map((m) => m * power).find((s) => s >= want));
    const out = [];
    for (let t = Math.ceil(this.from / step) * step; t <= this.to; t += step) out.push(t);
    return out;
  }

  // What runs at a time over the whole run, as a strip, and where the view is in it.
  drawOver() {
    const g = this.over.getContext("2d"), w = this.plot | 0, h = 34;
    if (!this.sums || this.sumsWidth !== w) {
      this.sumsWidth = w;
      this.sums = STACK.map(() => new Float64Array(w));
      const device = this.rows.some((r) => r.device);
      let rows = 0;
      for (const row of this.rows) {
        if (row.deep || row.device !== device || !this.chosen.has(row.group)) continue;
        rows++;
        for (let i = row.first; i < row.last; i++) {
          const place = STACK.indexOf(this.sort[i]), into = this.sums[place < 0 ? STACK.length - 1 : place], k = w / this.span, part = this.busy[i] / Math.max(1, this.end[i] - this.start[i]);
          const a = this.start[i] * k, b = Math.min(this.end[i] * k, w - 1e-6);
          for (let p = a | 0; p <= b; p++) into[p] += part * Math.max(0, Math.min(b, p + 1) - Math.max(a, p));
        }
      }
      const most = Math.max(1e-9, ...this.sums[0].map((_, p) => this.sums.reduce((s, x) => s + x[p], 0)));
      for (const s of this.sums) for (let p = 0; p < w; p++) s[p] /= most;
    }
    g.clearRect(0, 0, this.width, h);
    g.fillStyle = this.c.soft;
    g.font = "11.5px system-ui, sans-serif";
    g.textAlign = "right";
    g.textBaseline = "middle";
    g.fillText("whole run", GUTTER - 10, h / 2);
    for (let p = 0; p < w; p++) {
      let y = h - 3;
      this.sums.forEach((s, k) => { const v = s[p] * (h - 6); if (v > 0) { g.fillStyle = this.fill[STACK[k]][0]; g.fillRect(GUTTER + p, y - v, 1, v); y -= v; } });
    }
    const a = GUTTER + this.from / this.span * w, b = GUTTER + this.to / this.span * w;
    g.fillStyle = this.c.card;
    g.globalAlpha = .72;
    g.fillRect(GUTTER, 0, a - GUTTER, h);
    g.fillRect(b, 0, this.width - b, h);
    g.globalAlpha = 1;
    g.strokeStyle = this.c.ink;
    g.strokeRect(Math.max(a, GUTTER) + .5, .5, Math.max(2, b - a - 1), h - 1);
  }

  show(from, to) {
    const least = Math.min(this.span, 20), width = Math.min(this.span, Math.max(least, to - from));
    this.from = Math.max(0, Math.min(from, this.span - width));
    this.to = this.from + width;
    this.drawOver();
    this.soon();
  }
  zoom(factor, at = (this.from + this.to) / 2) { this.show(at - (at - this.from) * factor, at + (this.to - at) * factor); }
  move(part) { const d = (this.to - this.from) * part; this.show(this.from + d, this.to + d); }

  at(x, y) {
    const top = y - AXIS + this.view.scrollTop;
    if (x < GUTTER || y < AXIS) return null;
    const row = this.rows.find((r) => top >= r.y && top < r.y + r.h);
    if (!row) return null;
    const ns = this.ns(x), near = (this.to - this.from) / this.plot * 2.5;
    let best = null, least = near;
    for (let i = this.after(row, ns - near); i < row.last && this.start[i] <= ns + near; i++) {
      const away = Math.max(0, this.start[i] - ns, ns - this.end[i]);
      if (away < least) { best = i; least = away; if (!away) break; }
    }
    return best;
  }

  rowOf(i) { return this.rows.find((r) => i >= r.first && i < r.last); }
  words(i) {
    const row = this.rowOf(i), many = this.count[i] > 1, name = this.name[i] < 0 ? "several" : this.names[this.name[i]];
    const what = many ? `${this.count[i]} short events${this.name[i] < 0 ? "" : ` of ${name}`}, busy ${time(this.busy[i])} of` : name;
    return { name: what, lane: `${row.group}, ${row.lane}`, long: time(this.end[i] - this.start[i]), start: time(this.start[i], 6) };
  }
  tell(i) {
    const { name, lane, long, start } = this.words(i);
    const what = this.sort[i] ? SORTS[this.sort[i]] : "other";
    return `${name}\n${long}, ${what}\nfrom ${start}\n${lane}${this.critical[i] ? "\non the critical path" : ""}`;
  }

  select(i, reveal = false) {
    this.pick = i;
    const out = $(".picked", this.host);
    if (i === null) { out.textContent = out.dataset.empty; return this.soon(); }
    const { name, lane, long, start } = this.words(i);
    let same = 0, total = 0;
    if (this.name[i] >= 0) for (let k = 0; k < this.name.length; k++) if (this.name[k] === this.name[i]) { same += this.count[k]; total += this.busy[k]; }
    out.replaceChildren(Object.assign(document.createElement("b"), { textContent: name }));
    const more = this.name[i] >= 0 ? ` · ${same.toLocaleString("en")} of this name, ${time(total)} together` : "";
    const id = this.node && this.count[i] === 1 ? ` · node ${this.node[i]}` : "";
    out.append(` · ${long} from ${start} · ${lane}${id}${more}`);
    if (reveal) {
      const row = this.rowOf(i), width = this.to - this.from;
      if (this.start[i] < this.from || this.end[i] > this.to) this.show(this.start[i] - width / 2, this.start[i] + width / 2);
      if (row.y < this.view.scrollTop || row.y + row.h + AXIS > this.view.scrollTop + this.seen) this.view.scrollTop = row.y - HEAD;
    }
    this.soon();
  }

  // Time by category of what lies in an area: from and to in ns, y0 and y1 on the page of rows. What is inside a call
  // that is in the area, too, is counted with the call.
  sum(from, to, y0 = 0, y1 = this.height) {
    [from, to] = [Math.max(0, Math.min(from, to)), Math.min(this.span, Math.max(from, to))];
    [y0, y1] = [Math.max(0, Math.min(y0, y1)), Math.min(this.height, Math.max(y0, y1))];
    const inside = (r) => r && !r.hidden && r.y < y1 && r.y + r.h > y0;
    const sorts = {}, names = new Map();
    let lanes = 0, merged = false;
    this.rows.forEach((row, at) => {
      if (!inside(row)) return;
      const nested = row.nested && inside(this.rows[at - 1]) && this.rows[at - 1].group === row.group;
      if (!nested) lanes++;
      for (let i = this.after(row, from); i < row.last && this.start[i] < to; i++) {
        const long = this.end[i] - this.start[i], part = Math.min(to, this.end[i]) - Math.max(from, this.start[i]);
        if (part <= 0 && long > 0) continue;
        const ns = part * (long > 0 ? this.busy[i] / long : 0);
        merged ||= this.count[i] > 1;
        if (nested) continue;
        const sort = SORTS[this.sort[i]], entry = sorts[sort] ??= { ns: 0, count: 0 };
        entry.ns += ns;
        entry.count += this.count[i];
        const name = this.name[i] < 0 ? "(several)" : this.names[this.name[i]], of = names.get(name) ?? { ns: 0, count: 0 };
        names.set(name, { ns: of.ns + ns, count: of.count + this.count[i] });
      }
    });
    this.area = { from, to, y0, y1, lanes, merged, sorts, names: [...names].sort((a, b) => b[1].ns - a[1].ns) };
    return this.area;
  }

  tellArea() {
    const out = $(".area", this.host), area = this.area;
    out.hidden = !area;
    this.soon();
    if (!area) return out.replaceChildren();
    const make = (tag, text = "", more = {}) => Object.assign(document.createElement(tag), { textContent: text }, more);
    const long = area.to - area.from, width = Math.max(1, long);
    const row = (cells, head) => { const tr = make("tr"); cells.forEach((c, k) => { const td = make(head ? "th" : "td"); if (k) td.className = "num"; td.append(c); tr.append(td); }); return tr; };
    const table = (heads, rows) => { const t = make("table"), h = make("thead"), b = make("tbody"); h.append(row(heads, true)); b.append(...rows.map((r) => row(r))); t.append(h, b); return t; };
    const dot = (sort) => { const span = make("span"); span.append(make("i", "", { className: `dot s-${sort}` }), ` ${sort}`); return span; };
    const sorts = Object.entries(area.sorts).sort((a, b) => b[1].ns - a[1].ns);
    const by = table(["category", "time", "at a time", "slices"], sorts.map(([s, v]) => [dot(s), time(v.ns), (v.ns / width).toFixed(2), v.count.toLocaleString("en")]));
    const named = table(["name", "time", "slices"], area.names.slice(0, TOP_NAMES).map(([n, v]) => [n.length > 70 ? `${n.slice(0, 69)}…` : n, time(v.ns), v.count.toLocaleString("en")]));
    const head = make("p"), close = make("button", "Clear", { type: "button" });
    head.append(make("b", `${time(long, 4)} selected`), ` from ${time(area.from, 6)}, ${area.lanes.toLocaleString("en")} lane${area.lanes === 1 ? "" : "s"}${area.merged ? ", short events merged" : ""} `, close);
    close.addEventListener("click", () => { this.area = null; this.tellArea(); });
    const both = make("div", "", { className: "both" });
    both.append(by, named);
    out.replaceChildren(head, sorts.length ? both : make("p", "Nothing runs here."));
  }

  // Groups as text: `0-3, 8` are ranks of all runs, other words are part of a label; nothing is all.
  choose(text) {
    const parts = text.split(",").map((p) => p.trim().toLowerCase()).filter(Boolean);
    const rank = (g) => Number(/(\d+)$/.exec(g)?.[1] ?? -1);
    const fits = (g, p) => { const m = /^(\d+)(?:\s*-\s*(\d+))?$/.exec(p); return m ? rank(g) >= +m[1] && rank(g) <= +(m[2] ?? m[1]) : g.toLowerCase().includes(p); };
    this.pickGroups(this.groups.filter((g) => !parts.length || parts.some((p) => fits(g, p))));
  }
  pickGroups(groups) {
    this.chosen = new Set(groups);
    this.sums = this.area = null;
    const menu = $(".ranks", this.host);
    if (menu) {
      $("summary", menu).textContent = `Ranks: ${this.chosen.size} of ${this.groups.length}`;
      $$("button[data-group]", menu).forEach((b) => b.setAttribute("aria-pressed", String(this.chosen.has(b.dataset.group))));
    }
    this.layout();
    this.tellArea();
    this.resize();
  }
  bindRanks() {
    const menu = $(".ranks", this.host);
    if (this.groups.length < 2) return menu.remove();
    const list = $(".list", menu);
    for (const group of this.groups) {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: group.replace(/rank (\d+)$/, "$1") });
      button.dataset.group = group;
      button.addEventListener("click", () => { const now = new Set(this.chosen); if (!now.delete(group)) now.add(group); this.pickGroups(this.groups.filter((g) => now.has(g))); });
      list.append(button);
    }
    const text = $("input", menu);
    text.addEventListener("input", () => this.choose(text.value));
    $('[data-do="all"]', menu).addEventListener("click", () => { text.value = ""; this.pickGroups(this.groups); });
    $('[data-do="none"]', menu).addEventListener("click", () => this.pickGroups([]));
    this.pickGroups([...this.chosen]);
  }

  search(text) {
    this.query = text.trim().toLowerCase();
    this.matches = this.query ? this.names.map((n) => n.toLowerCase().includes(this.query)) : null;
    let n = 0, total = 0;
    if (this.matches) for (let i = 0; i < this.name.length; i++) if (this.matches[this.name[i]]) { n += this.count[i]; total += this.busy[i]; }
    $(".found", this.host).textContent = this.matches ? `${n.toLocaleString("en")} found, ${time(total)}` : "";
    this.soon();
  }

  bind() {
    const { canvas, host } = this;
    const place = (e) => { const box = canvas.getBoundingClientRect(); return [e.clientX - box.left, e.clientY - box.top]; };
    let drag = null;
    const down = (y) => y - AXIS + this.view.scrollTop;
    const stretch = (x, y) => drag.y < AXIS ? this.sum(this.ns(drag.x), this.ns(x)) : this.sum(this.ns(drag.x), this.ns(x), drag.top, down(y));
    canvas.addEventListener("pointerdown", (e) => {
      const [x, y] = place(e);
      if (!(e.shiftKey || this.selecting || y < AXIS) || x < GUTTER) return;
      drag = { x, y, top: down(y), area: true, moved: false };
      canvas.setPointerCapture(e.pointerId);
    });
    canvas.addEventListener("pointerdown", (e) => { if (drag) return; drag = { x: place(e)[0], from: this.from, to: this.to, moved: false }; canvas.setPointerCapture(e.pointerId); });
    canvas.addEventListener("pointermove", (e) => {
      const [x, y] = place(e);
      if (drag?.area) {
        if (Math.abs(x - drag.x) + Math.abs(y - drag.y) > 3) { drag.moved = true; stretch(x, y); this.soon(); }
        return hideTip();
      }
      if (drag && Math.abs(x - drag.x) > 3) {
        drag.moved = true;
        canvas.style.cursor = "grabbing";
        const d = (drag.x - x) / this.plot * (drag.to - drag.from);
        this.show(drag.from + d, drag.to + d);
        return hideTip();
      }
      const i = this.at(x, y);
      canvas.style.cursor = this.selecting || y < AXIS ? "crosshair" : i === null ? "grab" : "pointer";
      if (i === null) hideTip(); else showTip(this.tell(i), e.clientX, e.clientY);
    });
    canvas.addEventListener("pointerup", (e) => { if (drag?.area && drag.moved) { stretch(...place(e)); this.tellArea(); } else if (drag && !drag.moved) this.select(this.at(...place(e))); drag = null; canvas.style.cursor = "grab"; });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("dblclick", (e) => {
      const i = this.at(...place(e));
      if (i === null) return this.show(0, this.span);
      const pad = (this.end[i] - this.start[i]) * .25 + 1;
      this.show(this.start[i] - pad, this.end[i] + pad);
    });
    canvas.addEventListener("wheel", (e) => {
      if (e.ctrlKey || e.metaKey) { e.preventDefault(); this.zoom(Math.exp(Math.max(-80, Math.min(80, e.deltaY)) / 160), this.ns(place(e)[0])); }
      else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) { e.preventDefault(); this.move(e.deltaX / this.plot); }
    }, { passive: false });
    canvas.addEventListener("keydown", (e) => {
      if (e.ctrlKey || e.metaKey || e.altKey) return;
      const next = (step) => {
        if (this.pick === null) { const row = this.rows.find((r) => r.count && !r.hidden); return row && this.select(this.after(row, this.from), true); }
        const row = this.rowOf(this.pick), i = this.pick + step;
        if (i >= row.first && i < row.last) this.select(i, true);
      };
      const row = (step) => {
        if (this.pick === null) return next(0);
        let at = this.rows.indexOf(this.rowOf(this.pick)) + step;
        while (this.rows[at]?.hidden) at += step;
        const other = this.rows[at];
        if (other?.count) this.select(Math.min(this.after(other, this.start[this.pick]), other.last - 1), true);
      };
      const keys = {
        "+": () => this.zoom(.7), "=": () => this.zoom(.7), w: () => this.zoom(.7), "-": () => this.zoom(1.43), s: () => this.zoom(1.43),
        a: () => this.move(-.2), d: () => this.move(.2), ArrowLeft: () => next(-1), ArrowRight: () => next(1), ArrowUp: () => row(-1), ArrowDown: () => row(1),
        0: () => this.show(0, this.span), Home: () => this.show(0, this.span), Escape: () => { this.area = null; this.tellArea(); this.select(null); }, m: () => { this.sum(this.from, this.to); this.tellArea(); },
        "/": () => $('input[type="search"]', host).focus(), h: () => $('[data-do="host"]', host)?.click(), p: () => $('[data-do="path"]', host)?.click(),
        Enter: () => { if (this.pick !== null) { const pad = (this.end[this.pick] - this.start[this.pick]) * .25 + 1; this.show(this.start[this.pick] - pad, this.end[this.pick] + pad); } },
      };
      const act = keys[e.key] ?? keys[e.key.toLowerCase()];
      if (act) { e.preventDefault(); act(); }
    });
    let jump = false;
    const centre = (e) => { const box = this.over.getBoundingClientRect(), t = (e.clientX - box.left - GUTTER) / this.plot * this.span, half = (this.to - this.from) / 2; this.show(t - half, t + half); };
    this.over.addEventListener("pointerdown", (e) => { jump = true; this.over.setPointerCapture(e.pointerId); centre(e); });
    this.over.addEventListener("pointermove", (e) => { if (jump) centre(e); });
    this.over.addEventListener("pointerup", () => { jump = false; });
    this.view.addEventListener("scroll", () => { this.soon(); hideTip(); }, { passive: true });
    const press = { in: () => this.zoom(.6), out: () => this.zoom(1.67), left: () => this.move(-.4), right: () => this.move(.4), fit: () => this.show(0, this.span) };
    for (const [name, act] of Object.entries(press)) $(`[data-do="${name}"]`, host).addEventListener("click", act);
    const find = $('input[type="search"]', host);
    find.addEventListener("input", () => this.search(find.value));
    find.addEventListener("keydown", (e) => { if (e.key === "Escape") { find.value = ""; this.search(""); canvas.focus(); } });
    const threads = $('[data-do="host"]', host);
    if (!this.hasBoth) threads.remove();
    else {
      threads.setAttribute("aria-pressed", String(this.showHost));
      threads.addEventListener("click", () => { this.showHost = !this.showHost; threads.setAttribute("aria-pressed", String(this.showHost)); this.layout(); this.resize(); });
    }
    const area = $('[data-do="area"]', host);
    area.addEventListener("click", () => { this.selecting = !this.selecting; area.setAttribute("aria-pressed", String(this.selecting)); });
    this.bindRanks();
    const path = $('[data-do="path"]', host);
    if (!this.hasPath) path.remove();
    else path.addEventListener("click", () => { this.showPath = !this.showPath; path.setAttribute("aria-pressed", String(this.showPath)); this.soon(); });
  }
}

paint();
(async () => {
  for (const host of $$(".timeline")) {
    try {
      const timeline = new Timeline(host, await unpack($("script.packed", host).textContent));
      host.timeline = timeline;
    } catch (problem) {
      host.replaceChildren(Object.assign(document.createElement("p"), { className: "empty", textContent: `The timeline could not be drawn: ${problem.message}` }));
      console.error(problem);
    }
  }
  root.dataset.ready = "true";
})();
