// SQL over the run's tables, with completion of tables and columns; the rows as a table or as bars.
import { ask, count, el, fill, say, short, table, tell } from "./dom.js";
import { bars, plot } from "./plot.js";

const WORDS = "select from where group by order limit desc asc count sum avg min max as and or not null is in like join on having distinct with case when then else end".split(" ");

export async function questions(place, given) {
  const { run, state } = given;
  const known = await ask("tables", { run });
  const names = [...new Set([...Object.keys(known.tables), ...Object.values(known.tables).flat()])];
  const box = el("textarea", { rows: 6, spellcheck: false, "aria-label": "SQL", autocapitalize: "off", value: state.get("sql", known.examples[0]) });
  const hints = el("ul", { class: "hints", role: "listbox", hidden: true });
  const result = el("div", { class: "result" });
  const shape = el("select", { "aria-label": "Shown as", onchange: () => { state.set({ shape: shape.value }); draw(); } }, ["table", "bars", "points", "lines"].map((one) => el("option", { value: one, selected: state.get("shape") === one }, one)));
  let found = null, chosen = 0;

  async function go() {
    state.set({ sql: box.value });
    fill(result, el("p", { class: "soft" }, "Asking …"));
    try {
      found = await ask("query", { run, sql: box.value });
      tell(found.command, found.python);
      say(`${count(found.rows.length)} rows${found.more ? ", and more" : ""}`);
      draw();
    } catch (problem) {
      found = null;
      fill(result, el("p", { class: "empty bad" }, problem.message));
    }
  }

  function draw() {
    if (!found) return;
    const note = found.more ? el("p", { class: "soft" }, `The first ${count(found.rows.length)} rows: aggregate, or use LIMIT and OFFSET.`) : null;
    fill(result, note, shape.value === "table" ? table(found.columns, found.rows) : drawn(found, shape.value));
  }

  function complete() {
    const before = box.value.slice(0, box.selectionStart), word = (/[A-Za-z_]\w*$/.exec(before) || [""])[0].toLowerCase();
    const fits = word ? [...names, ...WORDS].filter((one) => one.startsWith(word) && one !== word).slice(0, 8) : [];
    chosen = 0;
    hints.hidden = !fits.length;
    fill(hints, ...fits.map((one, at) => el("li", { role: "option", "aria-selected": String(at === 0), onmousedown: (event) => { event.preventDefault(); take(one); } }, one)));
  }

  function take(name) {
    const at = box.selectionStart, before = box.value.slice(0, at).replace(/[A-Za-z_]\w*$/, "");
    box.value = before + name + box.value.slice(at);
    box.selectionStart = box.selectionEnd = before.length + name.length;
    hints.hidden = true;
    box.focus();
  }

  box.addEventListener("input", complete);
  box.addEventListener("blur", () => { hints.hidden = true; });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); hints.hidden = true; go(); return; }
    if (hints.hidden) return;
    const options = [...hints.children];
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      chosen = (chosen + (event.key === "ArrowDown" ? 1 : options.length - 1)) % options.length;
      options.forEach((one, at) => one.setAttribute("aria-selected", String(at === chosen)));
    } else if (event.key === "Tab") { event.preventDefault(); take(options[chosen].textContent); } else if (event.key === "Escape") hints.hidden = true;
  });
  const examples = known.examples.map((sql) => el("button", { type: "button", class: "example", onclick: () => { box.value = sql; go(); } }, short(sql.replace(/\s+/g, " "), 70)));
  const about = Object.entries(known.tables).map(([name, columns]) => el("details", {}, el("summary", {}, `${name} (${columns.length})`), el("p", { class: "soft" }, columns.join(", "))));
  place.append(el("div", { class: "split asks" },
    el("section", {}, el("h2", {}, "Ask"), el("div", { class: "editor" }, box, hints),
      el("div", { class: "bar" }, el("button", { type: "button", class: "main", onclick: go }, "Run  (Ctrl + Enter)"), el("label", { class: "soft" }, "as ", shape)),
      el("div", { class: "examples" }, examples), result),
    el("section", { class: "tables" }, el("h2", {}, "Tables"), about)));
  await go();
}

// The last column of numbers as bars over the first other column, or against the first column of numbers.
function drawn(found, shape) {
  const numeric = found.columns.map((_, at) => found.rows.some((row) => typeof row[at] === "number"));
  const value = numeric.lastIndexOf(true), first = numeric.indexOf(true);
  if (value < 0) return el("p", { class: "empty" }, "No column has numbers.");
  if (shape === "bars" || first === value) {
    const rows = found.rows.slice(0, 60), label = Math.max(0, numeric.indexOf(false));
    const note = rows.length < found.rows.length ? el("p", { class: "soft" }, `The first 60 of ${count(found.rows.length)} rows.`) : null;
    return el("div", {}, note, bars(rows.map((row) => String(row[label] ?? "–")), rows.map((row) => row[value])));
  }
  const by = numeric.indexOf(false), series = {};
  for (const row of found.rows) {
    if (typeof row[first] !== "number" || typeof row[value] !== "number") continue;
    const one = (series[by < 0 ? "" : String(row[by])] ??= { x: [], y: [] });
    one.x.push(row[first]);
    one.y.push(row[value]);
  }
  return plot({ series, form: shape === "lines" ? "lines" : "points", columns: [found.columns[first], found.columns[value]], tall: 320 });
}
