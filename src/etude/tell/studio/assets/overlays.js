// What is drawn over and below the rows of a timeline: flows between ranks, counters, notes.
import { ask, count, el, say, short, time } from "./dom.js";

export const STRIP = 40;
const ROW = 17;

// -- flows: a line from start to start of a collective's members, and from a send to the end of its receive ----------

export async function loadFlows(line) {
  const first = Math.max(0, Math.floor(line.first)), last = Math.ceil(line.last);
  try {
    line.flows = await ask("flows", { run: line.run, ranks: line.ranks, first_ns: first, last_ns: Math.max(last, first + 1) });
    line.about.tell?.(line.flows.command, line.flows.python);
    say(`${count(line.flows.flows.length)} flows between the ranks in view${line.flows.left_out ? `; ${count(line.flows.left_out)} short ones are left out: zoom in` : ""}`);
  } catch (problem) {
    line.flows = null;
    say(problem.message, true);
  }
  line.draw();
}

export function paintFlows(line, pen) {
  const tops = new Map(line.rows.map((row) => [`${row.rank}/${row.row}`, row.top - line.scroll.scrollTop + ROW / 2]));
  pen.lineWidth = 1;
  for (const [kind, places] of line.flows.flows) {
    pen.strokeStyle = kind === "message" ? line.ink.focus : line.ink.critical;
    pen.globalAlpha = 0.75;
    pen.beginPath();
    let begun = false;
    for (let i = 0; i < places.length; i += 4) {
      const y = tops.get(`${places[i]}/${places[i + 1]}`);
      if (y === undefined) continue;
      const x = line.x(kind === "message" && i ? places[i + 3] : places[i + 2]);
      if (begun) pen.lineTo(x, y); else pen.moveTo(x, y);
      begun = true;
      if (kind === "message" && i) arrow(pen, x, y);
    }
    pen.stroke();
  }
  pen.globalAlpha = 1;
}

function arrow(pen, x, y) {
  pen.moveTo(x - 5, y - 4);
  pen.lineTo(x, y);
  pen.lineTo(x - 5, y + 4);
  pen.moveTo(x, y);
}

// -- counters: a strip below the rows of each rank, with the lowest and the highest value of each two pixels ----------

export async function loadCounters(line) {
  if (line.counting) { line.countAgain = true; return; }
  line.counting = true;
  const first = Math.floor(line.first), last = Math.max(Math.ceil(line.last), first + 1);
  try {
    const ranks = line.strips.filter((one) => one.top + STRIP > line.scroll.scrollTop && one.top < line.scroll.scrollTop + line.seen).map((one) => one.rank);
    const found = await ask("counters", { run: line.run, name: line.counter, ranks: ranks.slice(0, 64), first_ns: first, last_ns: last, parts: Math.max(1, Math.min(1000, Math.round(line.plain / 2))) });
    line.counts = { ...found, first, last, of: new Map(found.series.map((one) => [one.rank, one])) };
    line.about.tell?.(found.command, found.python);
    if (found.why) say(found.why, true);
  } catch (problem) {
    line.counts = null;
    say(problem.message, true);
  }
  line.counting = false;
  line.draw();
  if (line.countAgain) { line.countAgain = false; loadCounters(line); }
}

export function paintCounters(line, pen) {
  const { counts } = line;
  for (const strip of line.strips) {
    const one = counts?.of.get(strip.rank), y = strip.top - line.scroll.scrollTop;
    if (y > line.seen || y + STRIP < 0) continue;
    pen.fillStyle = line.ink.track;
    pen.fillRect(line.left, y + 1, line.plain, STRIP - 3);
    if (!one) continue;
    const most = Math.max(...counts.series.map((each) => each.most), 1e-12), size = (counts.last - counts.first) / one.low.length;
    const tall = (value) => (STRIP - 5) * Math.max(0, value / most), floor = y + STRIP - 2;
    for (let i = 0; i < one.low.length; i += 1) {
      const x = Math.max(line.left, line.x(counts.first + i * size)), far = Math.min(line.width, line.x(counts.first + (i + 1) * size));
      if (far <= x) continue;
      pen.fillStyle = line.ink.sorts[line.sorts.indexOf("memory")];
      pen.globalAlpha = 0.45;
      pen.fillRect(x, floor - tall(one.high[i]), Math.max(1, far - x), tall(one.high[i]));
      pen.globalAlpha = 1;
      pen.fillRect(x, floor - tall(one.high[i]), Math.max(1, far - x), Math.max(1, tall(one.high[i]) - tall(one.low[i])));
    }
  }
}

export function labelCounters(line, pen) {
  for (const strip of line.strips) {
    const y = strip.top - line.scroll.scrollTop, one = line.counts?.of.get(strip.rank);
    if (y < 20) continue;
    pen.fillStyle = line.ink.soft;
    pen.font = "11px system-ui, sans-serif";
    pen.fillText(one ? `  ${short(line.counter, 8)}, at most` : `  ${line.counter}`, 7, y + 12);
    if (one) pen.fillText(`  ${amount(one.most, line.counts.unit)}`, 7, y + 27);
  }
}

export function amount(value, unit) {
  const [scale, prefix] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([size]) => Math.abs(value) >= size) || [1, ""];
  return `${Number((value / scale).toPrecision(4))} ${prefix}${unit === "bytes" ? "B" : unit}`;
}

// -- notes: words at a time, kept beside the index -------------------------------------------------------------------

export async function loadNotes(line) {
  line.notes = (await ask("notes", { run: line.run })).notes;
  line.draw();
}

export function paintNotes(line, pen) {
  pen.fillStyle = line.ink.focus;
  for (const note of line.notes) {
    const x = line.x(note.time_ns);
    if (x < line.left || x > line.width) continue;
    pen.fillRect(x, 3, 1, line.seen);
    pen.beginPath();
    pen.moveTo(x, 2);
    pen.lineTo(x + 9, 6);
    pen.lineTo(x, 10);
    pen.fill();
  }
}

export function showNotes(line) {
  const at = Math.round(line.picked ? line.picked.start_ns : line.marks[0] ?? (line.first + line.last) / 2);
  const box = el("input", { type: "text", class: "note", maxLength: 2000, "aria-label": "Note", placeholder: `a note at ${time(at, 7)}` });
  const keep = async (notes) => { line.notes = (await ask("keep", { run: line.run, notes })).notes; showNotes(line); line.draw(); };
  const add = () => { if (box.value.trim()) keep([...line.notes, { time_ns: at, ranks: line.ranks.slice(0, 64), text: box.value.trim() }]).catch((problem) => say(problem.message, true)); };
  box.addEventListener("keydown", (event) => { if (event.key === "Enter") add(); });
  const rows = line.notes.map((note, number) => el("li", {},
    el("button", { type: "button", onclick: () => { const half = (line.last - line.first) / 2; line.go(note.time_ns - half, note.time_ns + half); } }, time(note.time_ns, 7)), " ", note.text, " ",
    el("button", { type: "button", "aria-label": "Delete this note", onclick: () => keep(line.notes.filter((_, each) => each !== number)) }, "×")));
  line.panel.replaceChildren(el("h3", {}, "Notes"), el("p", {}, box, " ", el("button", { type: "button", onclick: add }, "Keep")),
    rows.length ? el("ul", { class: "noted" }, rows) : el("p", { class: "soft" }, "None so far. Notes are kept beside the index; Share writes them to a file."));
  box.focus();
}
