// What another verb wrote, at a glance: charts of its tables, each with the query that gives it.
import { ask, count, el, fill, tell } from "./dom.js";
import { bars, plot } from "./plot.js";

export async function charts(place, given) {
  const { run, showQuery, about } = given;
  place.append(el("p", { class: "soft" }, "Reading the tables …"));
  const found = await ask("charts", { run });
  tell(found.command, found.python);
  const sizes = Object.entries(found.tables).map(([name, [rows]]) => `${name} (${count(rows)})`).join(", ");
  const made = found.charts.map((one) => el("section", { class: "chart" },
    el("h2", {}, one.title),
    !one.rows ? el("p", { class: "empty" }, "No rows.") : one.form === "bars" ? bars(one.x, one.y, one.columns[1]) : plot(one),
    el("p", { class: "soft" }, `${count(one.rows)} rows. `, el("button", { type: "button", onclick: () => showQuery(one.sql) }, "Change the query"))));
  fill(place, el("p", { class: "soft" }, `A ${about.kind}. Tables: ${sizes}.`), el("div", { class: "charts" }, made.length ? made : el("p", { class: "empty" }, "No table has what is drawn here; Ask has all of them.")));
}
