// The timeline: rows of slices on a canvas. Pieces come from the server for what is in view; while they are on their
// way, the last ones are drawn stretched.
import { ask, askColumns, colour, count, el, percent, say, short, table, time } from "./dom.js";
import { STRIP, labelCounters, loadCounters, loadFlows, loadNotes, paintCounters, paintFlows, paintNotes, showNotes } from "./overlays.js";
import * as ranksOf from "./ranks.js";

const ROW = 17, GAP = 8, RULER = 24, LABEL = 168, LEAST_NS = 20;

export class Timeline {
  // `given`: run (number or name for the server), about (what is known of it), state to start from, and hear(state).
  constructor(given) {
    const { state = {}, ...rest } = given;
    Object.assign(this, { run: 0, hear: () => {}, label: "" }, rest);
    this.first = state.t0 ?? 0;
    this.last = state.t1 ?? Math.max(1, this.about.span_ns);
    this.ranks = state.ranks?.filter((rank) => this.about.ranks.includes(rank)) ?? ranksOf.usual(this.about);
    this.deep = state.deep ?? Boolean(this.about.units);
    this.marks = state.marks ?? [];
    this.rows = [];
    this.names = [];
    this.data = null;
    this.picked = null;
    this.members = [];
    this.path = null;
    this.onPath = state.path ?? false;
    this.zero = 0; // what the ruler counts from, in ns
    this.ratios = null; // by name: how many times as long in the other run
    this.flows = null;
    this.flowing = state.flows ?? false;
    this.counter = state.counter ?? "";
    this.counts = null;
    this.strips = [];
    this.notes = [];
    this.frames = [];
    this.waits = null;
    this.element = this.#make();
  }

  // -- the page ----------------------------------------------------------------------------------------------------

  #make() {
    this.canvas = el("canvas", {
      tabIndex: 0, role: "img",
      "aria-label": "Timeline. Arrows pan, plus and minus zoom, up and down choose a row, brackets step from slice to slice, M marks.",
    });
    this.space = el("div", { class: "space" });
    this.scroll = el("div", { class: "lanes" }, el("div", { class: "stick" }, this.canvas), this.space);
    this.input = el("input", { type: "text", value: ranksOf.spoken(this.ranks), "aria-label": "Ranks", class: "ranks-input", spellcheck: false, title: "0, 8-15, all; stages, groups and positions in groups by name" });
    // The sets that there are, to choose from; the browser shows those that begin with what was typed.
    const sets = el("datalist", { id: `sets-${this.run}` }, Object.entries(this.about.sets || {}).slice(0, 400).map(([name, ranks]) => el("option", { value: name }, `${count(ranks.length)} ranks`)));
    this.input.setAttribute("list", sets.id);
    this.find = el("input", { type: "search", placeholder: "Search a name  ( / )", "aria-label": "Search a name" });
    this.told = el("span", { class: "soft told" });
    this.panel = el("div", { class: "panel", "aria-live": "polite" });
    this.hits = el("div", { class: "hits" });
    const button = (text, does, title) => el("button", { type: "button", onclick: does, title: title || text }, text);
    this.deeper = button("Nested", () => { this.deep = !this.deep; this.#pressed(); this.#lay(); this.fresh(); }, "Operators inside operators, each on a row of its own");
    const traced = !this.about.units;
    this.pathed = button("Critical path", () => this.#togglePath(), "The chain of work that sets the length of the run, as a line above the ranks that it goes through");
    this.flowed = button("Flows", () => this.#toggleFlows(), "Lines between the members of collectives, and from sends to receives (F)");
    this.countered = el("select", { "aria-label": "Counter", title: "A value over time below the rows of each rank", onchange: () => this.#count(this.countered.value) },
      [["", "no counter"], ["memory", "memory"], ["power", "power"]].map(([value, text]) => el("option", { value, selected: value === this.counter }, text)));
    const bar = el("div", { class: "bar" },
      this.label ? el("b", { class: "which" }, this.label) : null,
      el("label", { class: "pair" }, this.about.units ? "Rows " : "Ranks ", this.input), sets,
      this.deeper,
      traced ? this.pathed : null,
      button("+", () => this.zoom(0.5), "Zoom in"), button("−", () => this.zoom(2), "Zoom out"), button("All", () => this.fit(), "The whole run"),
      this.find, button("Next", () => this.seek(), "Next slice with that name"),
      traced ? this.flowed : null,
      traced ? this.countered : null,
      this.about.times ? this.about.times() : null,
      this.label ? null : button("Notes", () => showNotes(this), "Words at a time, kept beside the index (T)"),
      button("Mark", () => this.mark(this.#middle()), "Mark the middle: two marks measure"),
      this.told);
    this.input.addEventListener("change", () => this.pick(this.input.value));
    this.find.addEventListener("input", () => this.#look());
    this.find.addEventListener("keydown", (event) => { if (event.key === "Enter") this.seek(); });
    this.#listen();
    this.#pressed();
    this.settle = null;
    return el("div", { class: "timeline-view" }, bar, this.hits, this.scroll, this.panel);
  }

  #pressed() {
    this.deeper.setAttribute("aria-pressed", String(this.deep));
    this.pathed.setAttribute("aria-pressed", String(this.onPath));
    this.flowed.setAttribute("aria-pressed", String(this.flowing));
  }

  #toggleFlows() {
    this.flowing = !this.flowing;
    if (!this.flowing) this.flows = null;
    this.#pressed();
    this.fresh();
  }

  #count(name) {
    this.counter = name;
    this.counts = null;
    this.#lay();
    this.fresh();
  }

  async #togglePath() {
    this.onPath = !this.onPath;
    this.#pressed();
    if (this.onPath) await this.#loadPath();
    else this.panel.replaceChildren();
    this.fresh();
  }

  // The path is worked out when it is first asked for; what it consists of is in the panel.
  async #loadPath() {
    say("working out the critical path …");
    try {
      this.path = await ask("path", { run: this.run });
      const { kinds, length_ns: all, top, left_out: left } = this.path;
      const parts = Object.entries(kinds).map(([kind, ns]) => `${kind} ${time(ns)} (${percent(ns / Math.max(1, all))})`).join(", ");
      this.panel.replaceChildren(el("h3", { class: "on-path" }, `Critical path: ${time(all, 6)}`),
        el("p", { class: "soft" }, `${parts}.${left ? ` ${count(left)} of its shortest pieces are not drawn.` : ""}`),
        table(top.columns.map((name) => name.replace("_ns", "")), top.rows.map((row) => row.map((value, at) => (top.columns[at].endsWith("_ns") ? time(value) : top.columns[at] === "share" ? percent(value) : value)))));
      this.about.tell?.(this.path.command, this.path.python);
      say("");
    } catch (problem) {
      this.onPath = false;
      this.#pressed();
      say(problem.message, true);
    }
  }

  async start() {
    const named = ask("names", { run: this.run });
    await this.#loadRows();
    this.#size();
    this.names = (await named).names;
    new ResizeObserver(() => this.#size()).observe(this.scroll);
    if (this.marks.length === 2) this.measure();
    if (this.onPath) { await this.#loadPath(); this.draw(); }
    if (!this.label) await loadNotes(this);
  }

  async #loadRows() {
    this.all = (await ask("rows", { run: this.run, ranks: this.ranks })).rows;
    this.#lay();
  }

  // Rows that are drawn, with their place. Without `deep` a lane shows its outermost slices.
  #lay() {
    let top = RULER;
    let rank = null;
    this.rows = [];
    this.strips = [];
    const strip = () => { if (this.counter && rank !== null) { this.strips.push({ rank, top }); top += STRIP; } };
    for (const row of this.all || []) {
      if (!this.deep && (row.depth > 0 || row.track > 0)) continue;
      if (row.rank !== rank) { strip(); top += rank === null ? 4 : GAP; rank = row.rank; }
      this.rows.push({ ...row, top });
      top += ROW;
    }
    strip();
    this.height = top + GAP;
    const seen = Math.max(160, this.scroll.clientHeight);
    this.space.style.height = `${Math.max(0, this.height - seen)}px`;
  }

  #size() {
    const ratio = devicePixelRatio || 1;
    this.width = Math.max(200, this.scroll.clientWidth);
    this.seen = Math.max(160, this.scroll.clientHeight);
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.seen * ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.seen}px`;
    this.#lay();
    this.fresh();
  }

  get left() { return this.width < 560 ? 76 : LABEL; }
  get plain() { return this.width - this.left; }
  x(ns) { return this.left + ((ns - this.first) / (this.last - this.first)) * this.plain; }
  ns(x) { return this.first + ((x - this.left) / this.plain) * (this.last - this.first); }
  #middle() { return this.picked ? this.picked.start_ns : (this.first + this.last) / 2; }

  // -- what is in view ---------------------------------------------------------------------------------------------

  fresh() {
    this.draw();
    this.#ask();
    this.hear(this.state());
    this.#later();
  }

  // What is worked out for the view where it comes to rest.
  #later() {
    if (!this.flowing && !this.counter) return;
    clearTimeout(this.settle);
    this.settle = setTimeout(() => {
      if (!this.element.isConnected) return;
      if (this.flowing) loadFlows(this);
      if (this.counter) loadCounters(this);
    }, 160);
  }

  state() {
    return { t0: Math.round(this.first), t1: Math.round(this.last), ranks: this.ranks, deep: this.deep === Boolean(this.about.units) ? undefined : this.deep, path: this.onPath || undefined, flows: this.flowing || undefined, counter: this.counter || undefined, marks: this.marks.length ? this.marks : undefined };
  }

  #visible() {
    const top = this.scroll.scrollTop;
    return this.rows.filter((row) => row.top + ROW > top && row.top < top + this.seen).slice(0, 512);
  }

  // One question at a time; the newest view waits for its turn.
  async #ask() {
    if (this.waits) { this.again = true; return; }
    const half = (this.last - this.first) / 2;
    const first = Math.max(-1, Math.floor(this.first - half)), last = Math.ceil(this.last + half);
    const rows = this.#visible();
    const wide = Math.max(1, Math.round(this.plain * ((last - first) / (this.last - this.first))));
    const question = { run: this.run, rows: rows.flatMap((row) => [row.rank, row.row]), first_ns: first, last_ns: last, pixels: Math.min(wide, 16384) };
    const key = JSON.stringify(question);
    if (key === this.answered) return;
    this.waits = askColumns("window", question);
    try {
      const [says, [row, start, end, busy, node, name, slices, sort]] = await this.waits;
      this.data = { says, rows: rows.map((one) => `${one.rank}/${one.row}`), row, start, end, busy, node, name, slices, sort, of: this.sorts.map(() => []) };
      for (let i = 0; i < sort.length; i += 1) this.data.of[sort[i]].push(i);
      this.answered = key;
      this.told.textContent = says.exact ? `${count(says.slices)} slices in ${count(says.pieces)} pieces` : `bins: too many slices to look at each`;
    } catch (problem) {
      say(problem.message, true);
    }
    this.waits = null;
    this.draw();
    if (this.again) { this.again = false; this.#ask(); }
    this.element.dataset.ready = String(!this.waits);
  }

  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => { this.drawing = 0; this.#paint(); });
  }

  #paint() {
    const begun = performance.now();
    const pen = this.canvas.getContext("2d");
    const ratio = devicePixelRatio || 1;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (this.theme !== document.documentElement.dataset.theme) this.#inks();
    pen.fillStyle = this.ink.card;
    pen.fillRect(0, 0, this.width, this.seen);
    this.#paintRows(pen);
    if (this.counter) paintCounters(this, pen);
    if (this.flowing && this.flows) paintFlows(this, pen);
    if (this.onPath && this.path) this.#paintPath(pen);
    this.#paintMembers(pen);
    this.#paintMarks(pen);
    this.#paintRuler(pen);
    this.#paintLabels(pen);
    if (this.notes.length) paintNotes(this, pen);
    this.frames.push(performance.now() - begun);
    if (this.frames.length > 2000) this.frames.shift();
  }

  #inks() {
    this.theme = document.documentElement.dataset.theme;
    const names = { card: "--card", ink: "--ink", soft: "--soft", line: "--line", track: "--track", focus: "--focus", critical: "--critical" };
    this.ink = Object.fromEntries(Object.entries(names).map(([key, name]) => [key, colour(name)]));
    this.ink.sorts = this.sorts.map((sort) => colour(`--${sort}`) || colour("--other"));
  }

  #paintRows(pen) {
    const top = this.scroll.scrollTop;
    const place = new Map(this.rows.map((row) => [`${row.rank}/${row.row}`, row]));
    pen.fillStyle = this.ink.track;
    for (const row of this.#visible()) pen.fillRect(this.left, row.top - top + 1, this.plain, ROW - 2);
    const data = this.data;
    if (!data) return;
    const tops = data.rows.map((key) => (place.has(key) ? place.get(key).top - top : NaN));
    const scale = this.plain / (this.last - this.first);
    const named = [];
    for (let sort = 0; sort < this.ink.sorts.length; sort += 1) {
      pen.fillStyle = this.ink.sorts[sort];
      for (const i of data.of[sort]) {
        const y = tops[data.row[i]];
        const x = Math.max(this.left, this.left + (data.start[i] - this.first) * scale);
        const far = Math.min(this.width, this.left + (data.end[i] - this.first) * scale);
        if (!(y > -ROW && y < this.seen) || far < this.left || x > this.width) continue;
        const wide = Math.max(1, far - x - (far - x > 4 ? 1 : 0));
        const full = data.slices[i] === 1 ? 1 : Math.max(0.25, Math.min(1, data.busy[i] / Math.max(1, data.end[i] - data.start[i])));
        const tall = (ROW - 2) * full;
        if (this.ratios) this.#byChange(pen, data.name[i] < 0 ? NaN : this.ratios[data.name[i]]);
        pen.fillRect(x, y + ROW - 1 - tall, wide, tall);
        if (wide > 44 && data.name[i] >= 0) named.push([i, x, y, wide]);
      }
    }
    pen.globalAlpha = 1;
    this.#paintNames(pen, named);
    if (this.picked) this.#paintPicked(pen, place, top);
  }

  // Slower is the colour of communication, faster that of memory, both stronger the larger the change is.
  #byChange(pen, ratio) {
    const change = Math.log2(ratio);
    const same = !(Math.abs(change) > 0.014);
    pen.globalAlpha = same ? 0.35 : Math.min(1, 0.45 + Math.abs(change));
    pen.fillStyle = same ? this.ink.soft : this.ink.sorts[this.sorts.indexOf(change > 0 ? "communication" : "memory")];
  }

  // Each piece in view: top of its row, x, y, width, height, sort, name.
  each(hear) {
    const top = this.scroll.scrollTop, data = this.data;
    const tops = new Map(this.rows.map((row) => [`${row.rank}/${row.row}`, row.top - top]));
    for (let i = 0; data && i < data.row.length; i += 1) {
      const y = tops.get(data.rows[data.row[i]]), x = Math.max(this.left, this.x(data.start[i])), far = Math.min(this.width, this.x(data.end[i]));
      if (!(y > -ROW && y < this.seen) || far <= x) continue;
      const full = data.slices[i] === 1 ? 1 : Math.max(0.25, Math.min(1, data.busy[i] / Math.max(1, data.end[i] - data.start[i])));
      hear(y, x, y + ROW - 1 - (ROW - 2) * full, Math.max(0.5, far - x), (ROW - 2) * full, data.sort[i], data.name[i] >= 0 ? this.names[data.name[i]] : "");
    }
  }

  // What a rank is called; in tables it is a replica, a job or a workload.
  #unit(rank) { return this.about.units ? this.about.units[this.about.ranks.indexOf(rank)] : `${this.left < LABEL ? "" : "rank "}${rank}`; }

  labels() { return this.#visible().map((row) => [row.top - this.scroll.scrollTop, `${this.about.units ? this.#unit(row.rank) : row.rank} · ${row.lane}`]); }

  #paintNames(pen, named) {
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.fillStyle = this.theme === "dark" ? "#0b0f14" : "#fff";
    for (const [i, x, y, wide] of named) {
      const most = Math.floor((wide - 6) / 5.6);
      if (most > 2) pen.fillText(short(this.names[this.data.name[i]] ?? "", most), x + 3, y + ROW / 2 + 0.5);
    }
  }

  #paintPicked(pen, place, top) {
    const row = place.get(`${this.picked.rank}/${this.picked.row}`);
    if (!row) return;
    const x = Math.max(this.left, this.x(this.picked.start_ns));
    const wide = Math.max(3, Math.min(this.width, this.x(this.picked.end_ns)) - x);
    pen.strokeStyle = this.ink.critical;
    pen.lineWidth = 2;
    if (x <= this.width) pen.strokeRect(x, row.top - top + 1, wide, ROW - 2);
  }

  // A line above the first row of each rank, and down or up to the next one.
  #paintPath(pen) {
    const tops = new Map();
    for (const row of this.rows) if (!tops.has(row.rank)) tops.set(row.rank, row.top - this.scroll.scrollTop);
    const { pieces } = this.path;
    pen.fillStyle = this.ink.critical;
    let before = null;
    for (let i = 0; i < pieces.length; i += 3) {
      const y = tops.get(pieces[i]), x = this.x(pieces[i + 1]), far = this.x(pieces[i + 2]);
      if (before !== null && y !== undefined && x >= this.left && x <= this.width) pen.fillRect(x - 0.5, Math.min(before, y) - 2, 1, Math.abs(y - before));
      before = y ?? null;
      if (y === undefined || far < this.left || x > this.width) continue;
      const from = Math.max(this.left, x);
      pen.fillRect(from, y - 2, Math.max(1, Math.min(this.width, far) - from), 3);
    }
  }

  // The members of the call that is picked: from start to start, and from end to end.
  #paintMembers(pen) {
    const tops = new Map(this.rows.map((row) => [`${row.rank}/${row.row}`, row.top - this.scroll.scrollTop]));
    const places = this.members.map(([rank, row, first, last]) => [tops.get(`${rank}/${row}`), this.x(first), this.x(last)]).filter(([y]) => y !== undefined);
    if (places.length < 2) return;
    pen.strokeStyle = this.ink.critical;
    pen.lineWidth = 1;
    for (const end of [1, 2]) {
      pen.beginPath();
      for (const place of places) pen.lineTo(Math.max(this.left, place[end]), place[0] + ROW / 2);
      pen.stroke();
    }
  }

  #paintMarks(pen) {
    pen.strokeStyle = pen.fillStyle = this.ink.critical;
    pen.lineWidth = 1.5;
    const places = this.marks.map((ns) => this.x(ns));
    for (const x of places) {
      if (x < this.left || x > this.width) continue;
      pen.beginPath();
      pen.moveTo(x, RULER - 8);
      pen.lineTo(x, this.seen);
      pen.stroke();
    }
    if (places.length === 2) {
      const [a, b] = [Math.max(this.left, Math.min(...places)), Math.min(this.width, Math.max(...places))];
      pen.globalAlpha = 0.1;
      if (b > a) pen.fillRect(a, RULER, b - a, this.seen);
      pen.globalAlpha = 1;
    }
  }

  #paintRuler(pen) {
    pen.fillStyle = this.ink.card;
    pen.fillRect(0, 0, this.width, RULER);
    const width = this.last - this.first;
    const rough = width / Math.max(2, this.plain / 110);
    const size = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((one) => one * size).find((one) => one >= rough);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (let at = Math.ceil((this.first - this.zero) / step) * step; at <= this.last - this.zero; at += step) {
      const x = this.x(at + this.zero);
      pen.fillStyle = this.ink.line;
      pen.fillRect(x, RULER - 7, 1, 7);
      pen.fillStyle = this.ink.soft;
      pen.fillText(time(at, 6), x + 4, RULER / 2);
    }
    pen.fillStyle = this.ink.line;
    pen.fillRect(0, RULER - 1, this.width, 1);
  }

  #paintLabels(pen) {
    const top = this.scroll.scrollTop;
    pen.fillStyle = this.ink.card;
    pen.fillRect(0, RULER, this.left - 4, this.seen);
    pen.textBaseline = "middle";
    let rank = null;
    for (const row of this.#visible()) {
      const y = row.top - top;
      if (y < RULER - 4) continue;
      const chosen = this.row && this.row.rank === row.rank && this.row.row === row.row;
      if (chosen) { pen.fillStyle = this.ink.focus; pen.fillRect(0, y + 1, 3, ROW - 2); }
      pen.fillStyle = row.rank !== rank ? this.ink.ink : this.ink.soft;
      pen.font = `${row.rank !== rank ? "600 " : ""}11px system-ui, sans-serif`;
      const inner = row.depth || row.track ? `· ${row.track ? `${row.track + 1}.` : ""}${row.depth || ""}` : row.lane;
      const text = row.rank !== rank ? `${this.#unit(row.rank)} · ${row.lane}` : `${"\u2003".repeat(1)}${inner}`;
      pen.fillText(short(text, this.left < LABEL ? 11 : 27), 7, y + ROW / 2 + 0.5);
      rank = row.rank;
    }
    if (this.counter) labelCounters(this, pen);
  }

  // -- moving ------------------------------------------------------------------------------------------------------

  go(first, last) {
    const most = Math.max(LEAST_NS * 2, this.about.span_ns);
    const width = Math.min(Math.max(last - first, LEAST_NS), most * 1.02);
    let from = (first + last) / 2 - width / 2;
    from = Math.min(Math.max(from, -0.01 * most), 1.01 * most - width);
    this.first = from;
    this.last = from + width;
    this.fresh();
    if (this.twin) this.twin.follow(this.first - this.zero + this.twin.zero, this.last - this.zero + this.twin.zero);
  }

  follow(first, last) { this.first = first; this.last = last; this.fresh(); }
  zoom(by, at = (this.first + this.last) / 2) { this.go(at - (at - this.first) * by, at + (this.last - at) * by); }
  pan(by) { const width = this.last - this.first; this.go(this.first + by * width, this.last + by * width); }
  fit() { this.go(0, this.about.span_ns); }

  async pick(text) {
    try {
      this.ranks = Array.isArray(text) ? text : ranksOf.parse(text, this.about);
      this.input.value = ranksOf.spoken(this.ranks);
      this.input.removeAttribute("aria-invalid");
      this.scroll.scrollTop = 0;
      await this.#loadRows();
      this.fresh();
    } catch (problem) {
      this.input.setAttribute("aria-invalid", "true");
      say(problem.message, true);
    }
  }

  // Shows a rank and a window: where a finding leads.
  async show(ranks, first, last) {
    const width = Math.max(last - first, LEAST_NS);
    this.go(first - width * 0.1, last + width * 0.1);
    await this.pick(ranks.slice(0, 32));
  }

  async #look() {
    const text = this.find.value.trim();
    if (!text) { this.hits.replaceChildren(); return; }
    const found = await ask("search", { run: this.run, text, ranks: [] });
    if (text !== this.find.value.trim()) return;
    const rows = found.names.slice(0, 8).map((one) => el("button", { type: "button", onclick: () => { this.find.value = one.name; this.hits.replaceChildren(); this.seek(); } }, short(one.name, 90)));
    this.hits.replaceChildren(...(rows.length ? rows : [el("span", { class: "soft" }, "No name contains that.")]));
  }

  async seek() {
    const text = this.find.value.trim();
    if (!text) return;
    const after = this.picked && this.picked.name.toLowerCase().includes(text.toLowerCase()) ? this.picked.start_ns : -1;
    let found = (await ask("search", { run: this.run, text, ranks: this.ranks, after_ns: after })).next;
    if (!found && after >= 0) found = (await ask("search", { run: this.run, text, ranks: this.ranks, after_ns: -1 })).next;
    if (found) this.reveal(found); else say(`no slice on these ranks has a name with “${short(text, 60)}”`);
  }

  reveal(slice) {
    this.picked = slice;
    this.row = slice;
    if (!this.deep && !this.rows.some((row) => row.rank === slice.rank && row.row === slice.row)) {
      this.deep = true;
      this.#pressed();
      this.#lay();
    }
    const row = this.rows.find((one) => one.rank === slice.rank && one.row === slice.row);
    if (row && (row.top < this.scroll.scrollTop + RULER || row.top > this.scroll.scrollTop + this.seen - ROW)) this.scroll.scrollTop = row.top - this.seen / 2;
    const middle = (slice.start_ns + slice.end_ns) / 2, long = slice.end_ns - slice.start_ns;
    if (slice.start_ns < this.first || slice.end_ns > this.last || long < (this.last - this.first) / 400) {
      const width = Math.max(long * 12, Math.min(this.last - this.first, long * 300), 200);
      this.go(middle - width / 2, middle + width / 2);
    } else this.fresh();
    this.#detail(slice);
  }

  #detail(slice) {
    const rows = [["name", slice.name], slice.sort ? ["kind", slice.sort] : null, [this.about.units ? "of" : "rank", this.about.units ? this.#unit(slice.rank) : String(slice.rank)], ["start", time(slice.start_ns, 9)], ["duration", time(slice.end_ns - slice.start_ns, 6)], this.about.units ? null : ["node", String(slice.node)]].filter(Boolean);
    this.panel.replaceChildren(el("h3", {}, "Slice"), el("dl", {}, rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, short(value, 12000))])));
    if (this.about.units) return;
    this.#joined(slice).then(() => this.#waits(slice));
    this.about.tell?.(`etude graph ${this.about.words} --rank ${slice.rank} --node ${slice.node}`, `${this.about.python}; run.job.trace(${slice.rank}).text("name", ${slice.node})`);
  }

  // What a slice waits for: a click goes there.
  async #waits(slice) {
    const found = await ask("waits", { run: this.run, rank: slice.rank, node: slice.node });
    if (this.picked !== slice || !found.of) return;
    const rows = found.before.map((one) => el("button", { type: "button", onclick: () => this.reveal(one) }, `${short(one.name, 60)} (ends at ${time(one.end_ns, 7)})`));
    this.panel.append(el("p", { class: "waits" }, `Waits for ${count(found.of)} ${found.of === 1 ? "node" : "nodes"}: `, ...(rows.length ? rows : ["none of them is drawn"])));
  }

  // Who else takes part in a collective, and who comes last.
  async #joined(slice) {
    this.members = [];
    if (slice.sort !== "communication") return;
    const found = await ask("members", { run: this.run, rank: slice.rank, node: slice.node, ranks: this.ranks });
    if (this.picked !== slice || !found.members.length) return;
    this.members = found.members;
    const size = found.size_bytes === null ? "" : `, ${count(found.size_bytes)} bytes`;
    this.panel.append(el("p", { class: "joined" }, `${found.label}: ${count(found.of)} members${size}. ${found.spread_ns ? `The last to arrive is rank ${found.last}, ${time(found.spread_ns)} after the first.` : "All arrive at once."} `,
      found.spread_ns ? el("button", { type: "button", onclick: () => this.pick([...new Set([...this.ranks, found.last])].sort((a, b) => a - b)) }, `Show rank ${found.last}`) : ""));
    this.draw();
  }

  // -- marks and ranges ---------------------------------------------------------------------------------------------

  mark(ns) {
    this.marks = this.marks.length === 2 || this.marks[0] === Math.round(ns) ? [Math.round(ns)] : [...this.marks, Math.round(ns)];
    this.fresh();
    if (this.marks.length === 2) this.measure();
    else say(`mark at ${time(ns, 7)}: a second one measures`);
  }

  async measure() {
    const [first, last] = [Math.min(...this.marks), Math.max(...this.marks)];
    if (last <= first) return;
    const rows = this.rows.slice(0, 512);
    const found = await ask("breakdown", { run: this.run, rows: rows.flatMap((row) => [row.rank, row.row]), first_ns: first, last_ns: last });
    const all = Object.values(found.sorts).reduce((a, b) => a + b, 0) || found.top.reduce((a, one) => a + one.time_ns, 0) || 1;
    const bars = Object.entries(found.sorts).map(([sort, ns]) => el("i", { class: `s-${sort}`, title: `${sort} ${time(ns)}`, style: { width: `${(100 * ns) / all}%` } }));
    const legend = Object.entries(found.sorts).map(([sort, ns]) => el("li", {}, el("i", { class: `dot s-${sort}` }), `${sort} ${time(ns)} (${percent(ns / all)})`));
    this.panel.replaceChildren(
      el("h3", { class: "measured" }, `${time(last - first, 7)} between the marks`),
      el("p", { class: "soft" }, `${count(found.rows)} rows, ${count(found.names)} names; a slice counts with what is between the marks${this.deep ? ", and inside its caller as well" : ""}.`),
      el("div", { class: "bars" }, el("div", { class: "bar wide" }, bars)), el("ul", { class: "legend" }, legend),
      table(["name", "time", "count", "share"], found.top.map((one) => [one.name, time(one.time_ns), one.count, percent(one.time_ns / all)])));
    this.about.tell?.(found.command, found.python);
  }

  // -- mouse, touch, keys --------------------------------------------------------------------------------------------

  #listen() {
    const at = (event) => { const box = this.canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    this.scroll.addEventListener("scroll", () => this.fresh());
    this.canvas.addEventListener("wheel", (event) => {
      if (!(event.ctrlKey || event.metaKey || event.shiftKey) && Math.abs(event.deltaY) > Math.abs(event.deltaX) && !event.altKey) {
        if (this.height > this.seen && !event.altKey) return;
      }
      event.preventDefault();
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / 800);
      else this.zoom(Math.exp(event.deltaY * 0.0022), this.ns(at(event)[0]));
    }, { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.focus();
      this.drag = { x: at(event)[0], first: this.first, last: this.last, moved: false, range: event.shiftKey || at(event)[1] < RULER };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.drag) return;
      const x = at(event)[0];
      if (Math.abs(x - this.drag.x) > 3) this.drag.moved = true;
      if (this.drag.range) { this.marks = [this.ns(this.drag.x), this.ns(x)].map(Math.round); this.draw(); }
      else {
        const by = ((this.drag.x - x) / this.plain) * (this.drag.last - this.drag.first);
        this.go(this.drag.first + by, this.drag.last + by);
      }
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const drag = this.drag;
      this.drag = null;
      if (!drag) return;
      if (drag.range && drag.moved) { this.fresh(); this.measure(); }
      else if (drag.range) this.mark(this.ns(drag.x));
      else if (!drag.moved) this.#click(...at(event));
    });
    this.canvas.addEventListener("dblclick", (event) => this.zoom(0.4, this.ns(at(event)[0])));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  #rowAt(y) { const at = y + this.scroll.scrollTop; return this.rows.find((row) => at >= row.top && at < row.top + ROW); }

  async #click(x, y) {
    const row = this.#rowAt(y);
    if (!row) return;
    this.row = row;
    const found = (await ask("slice", { run: this.run, rank: row.rank, row: row.row, time_ns: Math.round(this.ns(x)), by: 0 })).slice;
    if (!found) return;
    this.picked = found;
    this.draw();
    this.#detail(found);
  }

  async #step(by) {
    const row = this.row || this.rows[0];
    if (!row) return;
    const found = (await ask("slice", { run: this.run, rank: row.rank, row: row.row, time_ns: Math.round(this.picked && this.picked.row === row.row && this.picked.rank === row.rank ? this.picked.start_ns : this.first), by })).slice;
    if (found) this.reveal(found);
  }

  #choose(by) {
    const at = this.rows.findIndex((row) => this.row && row.rank === this.row.rank && row.row === this.row.row);
    const next = this.rows[Math.min(Math.max(at + by, 0), this.rows.length - 1)];
    if (!next) return;
    this.row = next;
    if (next.top < this.scroll.scrollTop + RULER) this.scroll.scrollTop = next.top - RULER;
    if (next.top > this.scroll.scrollTop + this.seen - 2 * ROW) this.scroll.scrollTop = next.top - this.seen + 2 * ROW;
    say(`${this.#unit(next.rank)}, ${next.lane}${next.depth ? `, depth ${next.depth}` : ""}`);
    this.draw();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const does = {
      ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1), a: () => this.pan(-0.1), d: () => this.pan(0.1),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), w: () => this.zoom(0.5), "-": () => this.zoom(2), s: () => this.zoom(2),
      Home: () => this.fit(), 0: () => this.fit(), ArrowUp: () => this.#choose(-1), ArrowDown: () => this.#choose(1),
      "[": () => this.#step(-1), "]": () => this.#step(1), m: () => this.mark(this.#middle()), n: () => this.seek(), f: () => this.about.units || this.#toggleFlows(), t: () => this.label || showNotes(this), c: () => this.about.units || this.#togglePath(),
      Enter: () => this.#step(0), Escape: () => { this.marks = []; this.picked = null; this.members = []; this.panel.replaceChildren(); this.fresh(); },
      "/": () => this.find.focus(),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  }
}
