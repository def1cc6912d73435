// Elements, numbers and questions. Text enters the page as text only, never as markup.

export function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name === "style") for (const [key, one] of Object.entries(value)) made.style.setProperty(key, one);
    else if (name in made && name !== "list" && name !== "form") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

// Replaces what is in an element; what is null is left out.
export const fill = (place, ...children) => place.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));

export const $ = (selector) => document.querySelector(selector);

const UNITS = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];

export function time(ns, digits = 4) {
  if (ns === null || ns === undefined) return "–";
  const [unit, size] = UNITS.find(([, one]) => Math.abs(ns) >= one) || UNITS[3];
  return `${Number((ns / size).toPrecision(digits)).toLocaleString("en-US", { maximumFractionDigits: 6 })} ${unit}`;
}

export const count = (value) => Number(value).toLocaleString("en-US");
export const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)}%`;
export const short = (text, most = 200) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Refused extends Error {}

async function asked(what, given, signal) {
  const found = await fetch(`api/${what}`, {
    method: "POST", body: JSON.stringify(given || {}), headers: { "content-type": "application/json" }, signal,
  });
  if (found.ok) return found;
  let told = {};
  try { told = await found.json(); } catch { /* not ours */ }
  throw new Refused([told.problem || `the studio answers ${found.status}`, told.hint].filter(Boolean).join(". "));
}

export const ask = async (what, given, signal) => (await asked(what, given, signal)).json();

const ARRAYS = { int64: BigInt64Array, int32: Int32Array, uint8: Uint8Array, float64: Float64Array };

// An answer of columns: its head as an object, and its arrays; numbers of 64 bits become plain numbers.
export async function askColumns(what, given, signal) {
  const buffer = await (await asked(what, given, signal)).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let at = 4 + length;
  const columns = head.columns.map(([kind, size]) => {
    const made = new ARRAYS[kind](buffer, at, size);
    at += made.byteLength + ((-made.byteLength % 8) + 8) % 8;
    return kind === "int64" ? Float64Array.from(made, Number) : made;
  });
  return [head, columns];
}

export function say(text, bad = false) {
  const status = $("#status");
  status.textContent = text;
  status.classList.toggle("bad", bad);
}

export function tell(command, python) {
  $("#command").textContent = command || "";
  $("#python").textContent = python || "";
}

// A table of rows; cells are texts. `more` may give a function for a click on a row.
export function table(columns, rows, more = {}) {
  const numeric = columns.map((_, at) => rows.length > 0 && rows.every((row) => row[at] === null || typeof row[at] === "number"));
  const head = el("tr", {}, columns.map((name, at) => el("th", { class: numeric[at] ? "num" : "", scope: "col" }, String(name))));
  const body = rows.map((row, number) => {
    const cells = row.map((value, at) => el("td", { class: numeric[at] ? "num" : "text" }, cell(value)));
    const made = el("tr", {}, cells);
    if (more.pick) {
      made.tabIndex = 0;
      made.classList.add("pick");
      made.addEventListener("click", () => more.pick(number));
      made.addEventListener("keydown", (event) => { if (event.key === "Enter") more.pick(number); });
    }
    return made;
  });
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, body)));
}

function cell(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : Number(value.toPrecision(6)).toString();
  return short(typeof value === "string" ? value : JSON.stringify(value), 2000);
}
