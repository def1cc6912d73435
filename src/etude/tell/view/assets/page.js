"use strict";
// The page works without this script but for the timeline: charts and tables are in the HTML.
const $ = (selector, from = document) => from.querySelector(selector);
const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
const root = document.documentElement;

// -- theme: as the system says, until somebody chooses --------------------------------------------------------------
const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
try { chosen = localStorage.getItem("etude-theme"); } catch { /* storage is not there for every file:// page */ }
const wanted = new URLSearchParams(location.search).get("theme");
if (wanted) chosen = wanted;
const redraws = [];
function paint() {
  root.dataset.theme = chosen || (dark.matches ? "dark" : "light");
  for (const redraw of redraws) redraw();
}
dark.addEventListener("change", paint);
$("#theme").addEventListener("click", () => {
  chosen = root.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("etude-theme", chosen); } catch { /* then it lasts until the page is closed */ }
  paint();
});
$("#print").addEventListener("click", () => print());
addEventListener("beforeprint", () => { root.dataset.theme = "light"; for (const redraw of redraws) redraw(true); });
addEventListener("afterprint", paint);

// -- tooltips: everything with data-tip ------------------------------------------------------------------------------
const tip = $("#tip");
function showTip(text, x, y) {
  tip.textContent = text;
  tip.style.display = "block";
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 12) : y + 18}px`;
}
const hideTip = () => { tip.style.display = "none"; };
addEventListener("pointermove", (e) => {
  const at = e.target.closest?.("[data-tip]");
  if (at) showTip(at.dataset.tip, e.clientX, e.clientY);
  else if (!e.target.closest?.("canvas")) hideTip();
});
addEventListener("focusin", (e) => {
  const at = e.target.closest?.("[data-tip]");
  if (!at) return hideTip();
  const box = at.getBoundingClientRect();
  showTip(at.dataset.tip, box.left + box.width / 2, box.bottom - 12);
});
addEventListener("scroll", hideTip, { passive: true });

// -- tables: sort by a column, show more ----------------------------------------------------------------------------
for (const button of $$("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const table = head.closest("table");
    const up = head.getAttribute("aria-sort") === "descending";
    for (const other of $$("th", table)) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const column = head.cellIndex;
    const key = (row) => {
      const text = row.cells[column].dataset.v ?? row.cells[column].textContent;
      return text === "" ? -Infinity : Number.isNaN(+text) ? text : +text;
    };
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      const order = typeof x === typeof y ? (x < y ? -1 : x > y ? 1 : 0) : typeof x === "number" ? -1 : 1;
      return up ? order : -order;
    });
    table.tBodies[0].append(...rows);
  });
}
for (const button of $$(".more button")) {
  button.addEventListener("click", () => {
    const table = document.getElementById(button.getAttribute("aria-controls"));
    const short = table.classList.toggle("short");
    button.setAttribute("aria-expanded", String(!short));
    button.textContent = short ? button.dataset.more : "Show fewer";
  });
}

// -- which section is in view ----------------------------------------------------------------------------------------
const links = new Map($$("nav.sections a").map((a) => [a.hash.slice(1), a]));
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    for (const a of links.values()) a.removeAttribute("aria-current");
    links.get(entry.target.id)?.setAttribute("aria-current", "true");
  }
}, { rootMargin: "-30% 0px -60% 0px" });
for (const id of links.keys()) { const at = document.getElementById(id); if (at) seen.observe(at); }

// -- help: what the keys do ------------------------------------------------------------------------------------------
const help = $("#help");
for (const button of $$("[data-help]")) button.addEventListener("click", () => help.showModal());
addEventListener("keydown", (e) => {
  if (e.key !== "?" || e.ctrlKey || e.metaKey || e.altKey || e.target.closest?.("input")) return;
  e.preventDefault();
  if (help.open) help.close(); else help.showModal();
});
help.addEventListener("click", (e) => { if (e.target === help) help.close(); });

// -- embedded data: base64 of zlib ------------------------------------------------------------------------------------
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  if (typeof DecompressionStream === "undefined") return inflate(bytes.subarray(2));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
// RFC 1951, for browsers without DecompressionStream.
function inflate(input) {
  let at = 0, bit = 0, out = new Uint8Array(Math.max(1 << 16, input.length * 6)), used = 0;
  const bits = (n) => { let v = 0; for (let i = 0; i < n; i++) { v |= (input[at] >> bit & 1) << i; if (++bit === 8) { bit = 0; at++; } } return v; };
  const tree = (lengths) => {
    const count = new Uint16Array(16), first = new Uint16Array(16), symbols = new Uint16Array(lengths.length);
    for (const l of lengths) if (l) count[l]++;
    for (let l = 1; l < 15; l++) first[l + 1] = first[l] + count[l];
    const next = first.slice();
    lengths.forEach((l, s) => { if (l) symbols[next[l]++] = s; });
    return { count, symbols };
  };
  const read = ({ count, symbols }) => {
    let code = 0, first = 0, index = 0;
    for (let l = 1; l < 16; l++) {
      code |= bits(1);
      if (code - first < count[l]) return symbols[index + code - first];
      index += count[l]; first = first + count[l] << 1; code <<= 1;
    }
    throw new Error("damaged data");
  };
  const put = (byte) => { if (used === out.length) { const more = new Uint8Array(used * 2); more.set(out); out = more; } out[used++] = byte; };
  const base = (extra, from, step) => { const b = []; let v = from; for (let i = 0; i < extra.length; i++) { b.push(v); v += 1 << extra[i]; } return b; };
  const lengthExtra = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
  const distExtra = [...Array(30).keys()].map((i) => Math.max(0, (i >> 1) - 1));
  const lengthBase = base(lengthExtra, 3), distBase = base(distExtra, 1);
  lengthBase[28] = 258;
  const fixed = [tree(Array.from({ length: 288 }, (_, i) => i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8)), tree(Array(30).fill(5))];
  for (let last = 0; !last;) {
    last = bits(1);
    const kind = bits(2);
    if (kind === 0) {
      if (bit) { bit = 0; at++; }
      const n = input[at] | input[at + 1] << 8;
      at += 4;
      for (let i = 0; i < n; i++) put(input[at++]);
      continue;
    }
    let [literals, distances] = fixed;
    if (kind === 2) {
      const nl = bits(5) + 257, nd = bits(5) + 1, nc = bits(4) + 4, cl = Array(19).fill(0), lengths = [];
      for (let i = 0; i < nc; i++) cl[[16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15][i]] = bits(3);
      const codes = tree(cl);
      while (lengths.length < nl + nd) {
        const s = read(codes);
        if (s < 16) lengths.push(s);
        else { const v = s === 16 ? lengths.at(-1) : 0, n = s === 16 ? 3 + bits(2) : s === 17 ? 3 + bits(3) : 11 + bits(7); for (let i = 0; i < n; i++) lengths.push(v); }
      }
      literals = tree(lengths.slice(0, nl));
      distances = tree(lengths.slice(nl));
    }
    for (;;) {
      const s = read(literals);
      if (s < 256) put(s);
      else if (s === 256) break;
      else {
        const n = lengthBase[s - 257] + bits(lengthExtra[s - 257]), d = read(distances), back = distBase[d] + bits(distExtra[d]);
        for (let i = 0; i < n; i++) put(out[used - back]);
      }
    }
  }
  return out.subarray(0, used);
}

// -- words for times --------------------------------------------------------------------------------------------------
function time(ns, digits = 4) {
  const size = Math.abs(ns);
  const [unit, scale] = size >= 1e9 ? ["s", 1e9] : size >= 1e6 ? ["ms", 1e6] : size >= 1e3 ? ["µs", 1e3] : ["ns", 1];
  return `${+(ns / scale).toPrecision(digits)} ${unit}`;
}
