// Two runs under each other, aligned at their starts or by step, and the tables of `etude compare`.
import { ask, el, fill, table, tell, time } from "./dom.js";
import { Timeline } from "./timeline.js";

export async function compare(place, given) {
  const { runs, sorts, state, numbers } = given;
  const lines = numbers.map((run, at) => new Timeline({ run, about: { ...runs[at], span_ns: Math.max(...runs.map((one) => one.span_ns)) }, sorts, label: at ? "after" : "before", state: { ...state.get("compare", {}), ranks: state.get("compare", {}).ranks } , hear: at ? () => {} : (now) => state.set({ compare: now }) }));
  [lines[0].twin, lines[1].twin] = [lines[1], lines[0]];
  const why = el("section", { class: "why" }, el("h2", {}, "Why"), el("p", { class: "soft" }, "Comparing …"));
  place.append(el("div", { class: "pair-of" }, lines.map((one) => one.element)), why);
  await Promise.all(lines.map((one) => one.start()));
  window.studio.pair = lines;
  const found = await ask("compare", { first: numbers[0], second: numbers[1] });
  tell(found.command, found.python);
  const cell = (value, name) => (typeof value === "number" && name.endsWith("_ns") ? time(value) : value);
  const tables = Object.entries(found.tables).map(([name, one]) => [el("h3", {}, name), table(one.columns, one.rows.map((row) => row.map((value, at) => cell(value, one.columns[at]))))]);
  fill(why, el("h2", {}, "Why"), el("p", {}, found.words), ...tables.flat());
}
