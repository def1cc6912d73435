// Two runs under each other, aligned at their starts or at a step, coloured by kind or by what became slower, and the
// tables of `etude compare`.
import { ask, el, fill, percent, table, tell, time } from "./dom.js";
import { Timeline } from "./timeline.js";

export async function compare(place, given) {
  const { runs, sorts, state, numbers } = given;
  const saved = state.get("compare", {});
  const lines = numbers.map((run, at) => new Timeline({ run, about: { ...runs[at], span_ns: Math.max(...runs.map((one) => one.span_ns)) }, sorts, label: at ? "after" : "before", state: { ...saved, ranks: saved.ranks }, hear: at ? () => {} : (now) => state.set({ compare: { ...now, step: chosen.step, changes: chosen.changes || undefined } }) }));
  const chosen = { step: saved.step, changes: saved.changes ?? false };
  [lines[0].twin, lines[1].twin] = [lines[1], lines[0]];
  const why = el("section", { class: "why" }, el("h2", {}, "Why"), el("p", { class: "soft" }, "Comparing …"));
  const bar = el("div", { class: "bar" });
  place.append(bar, el("div", { class: "pair-of" }, lines.map((one) => one.element)), why);
  await Promise.all(lines.map((one) => one.start()));
  window.studio.pair = lines;
  const found = await ask("compare", { first: numbers[0], second: numbers[1] });
  tell(found.command || given.command, found.python || given.python);

  const align = (step) => {
    const one = found.steps.find(([number]) => number === step);
    chosen.step = one ? step : undefined;
    lines[0].zero = one ? one[1] : 0;
    lines[1].zero = one ? one[3] : 0;
    if (one) lines[0].go(one[1], one[1] + Math.max(one[2], one[4]) * 1.02);
    else lines[0].fit();
  };
  const colour = (by) => {
    chosen.changes = by;
    for (const line of lines) { line.ratios = by ? line.names.map((name) => (Object.hasOwn(found.ratios, name) ? found.ratios[name] : NaN)) : null; line.draw(); }
    lines[0].hear(lines[0].state());
  };
  const steps = el("select", { "aria-label": "Aligned at", onchange: () => align(steps.value === "" ? undefined : Number(steps.value)) },
    el("option", { value: "" }, "their starts"), found.steps.map(([number]) => el("option", { value: number, selected: number === chosen.step }, `step ${number}`)));
  const changes = el("input", { type: "checkbox", checked: chosen.changes, onchange: () => colour(changes.checked) });
  fill(bar, el("label", { class: "soft" }, "Aligned at ", steps), el("label", { class: "soft" }, changes, " colour by change"),
    el("span", { class: "soft" }, "orange: its calls take longer in the second; green: less long; grey: the same, or several pieces together"));
  if (chosen.step !== undefined && lines[0].zero === 0) { const one = found.steps.find(([number]) => number === chosen.step); if (one) [lines[0].zero, lines[1].zero] = [one[1], one[3]]; lines[0].go(lines[0].first, lines[0].last); }
  if (chosen.changes) colour(true);

  const cell = (value, name) => (typeof value === "number" && name.endsWith("_ns") ? time(value) : value);
  const tables = Object.entries(found.tables).map(([name, one]) => [el("h3", {}, name), table(one.columns, one.rows.map((row) => row.map((value, at) => cell(value, one.columns[at]))))]);
  const each = found.steps.length ? [el("h3", {}, "Steps: a click shows both"), table(["step", "before", "after", "change"], found.steps.map(([number, , before, , after]) => [number, time(before), time(after), `${after >= before ? "+" : "−"}${percent(Math.abs(after / Math.max(1, before) - 1))}`]), { pick: (at) => { steps.value = String(found.steps[at][0]); align(found.steps[at][0]); } })] : [];
  fill(why, el("h2", {}, "Why"), el("p", {}, found.words), ...tables.flat(), ...each);
}
