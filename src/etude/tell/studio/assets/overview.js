// Ranks by steps as a map of colours, and the findings beside it; both lead to the timeline.
import { ask, colour, count, el, fill, percent, tell, time } from "./dom.js";

const MOST_TALL = 640;

export async function overview(place, given) {
  const { about, run, go, state } = given;
  const side = el("section", { class: "found" }, el("h2", {}, "Findings"), el("p", { class: "soft" }, "Looking for faults …"));
  const map = el("section", { class: "map" }, el("h2", {}, "Ranks by steps"), el("p", { class: "soft" }, "Reading the steps …"));
  place.append(el("div", { class: "split" }, map, side));
  const kinds = { steps: "heat", collectives: "arrivals" };
  const show = async (kind) => {
    const found = await ask(kinds[kind], { run });
    tell(found.command, found.python);
    const other = el("select", { "aria-label": "Columns", onchange: () => { state.set({ map: other.value === "steps" ? undefined : other.value }); show(other.value); } },
      [["steps", found.by === "window" ? "windows of time" : "steps"], ["collectives", "collectives"]].map(([name, text]) => el("option", { value: name, selected: name === kind }, text)));
    if (found.columns.length) drawMap(map, found, other, go, state);
    else fill(map, el("h2", {}, "Ranks by collectives"), el("div", { class: "bar" }, el("label", { class: "soft" }, "Ranks by ", other)), el("p", { class: "empty" }, "No collective of several members has times."));
  };
  await show(kinds[state.get("map")] ? state.get("map") : "steps");
  ask("findings", { run }).then((all) => drawFindings(side, all, go)).catch((problem) => {
    fill(side, el("h2", {}, "Findings"), el("p", { class: "empty" }, problem.message));
  });
}

function drawFindings(side, all, go) {
  const rows = all.findings.map((one) => el("li", { class: one.cost_ns > 0 ? "tone-warn" : "tone-info" },
    el("span", { class: "mark" }, one.cost_ns > 0 ? "!" : "i"),
    el("span", { class: "what" }, one.words),
    el("span", { class: "why" }, el("button", { type: "button", onclick: () => go(one.ranks, one.window) }, "Show in the timeline"), " ", el("code", {}, one.command)),
    el("span", { class: "side" }, one.cost_ns > 0 ? percent(one.share) : "")));
  fill(side, el("h2", {}, "Findings"), rows.length ? el("ul", { class: "findings" }, rows) : el("p", { class: "empty" }, "No fault was found, and nothing that is worth doing."),
    el("p", { class: "soft" }, el("code", {}, all.command)));
}

function drawMap(section, found, other, go, state) {
  const columns = found.columns.length, rows = found.ranks.length;
  const names = Object.keys(found.measures);
  let measure = names.includes(state.get("measure")) ? state.get("measure") : names[0];
  const known = Math.max(0, found.first_ns.findIndex((ns) => ns !== null));
  let row = Math.floor(known / columns), column = known % columns;
  const canvas = el("canvas", { tabIndex: 0, role: "img", "aria-label": "Map of ranks by steps. Arrows choose a cell, Enter shows it in the timeline." });
  const said = el("p", { class: "cell soft", "aria-live": "polite" });
  const legend = el("span", { class: "soft" });
  const choose = el("select", { "aria-label": "What is shown", onchange: () => { measure = choose.value; state.set({ measure }); draw(); } }, names.map((name) => el("option", { value: name, selected: name === measure }, name)));
  fill(section, el("h2", {}, { step: "Ranks by steps", window: "Ranks by time", call: "Ranks by collectives" }[found.by]),
    found.by !== "window" ? null : el("p", { class: "soft" }, "No node names its step: columns are windows of equal length."),
    el("div", { class: "bar" }, el("label", { class: "soft" }, "Ranks by ", other), el("label", { class: "soft" }, "Show ", choose), legend), canvas, said);
  const cell = () => row * columns + column;
  const tall = Math.max(1, Math.min(22, Math.floor(MOST_TALL / rows)));
  const left = 52;

  function draw() {
    const wide = Math.max(200, section.clientWidth - 40), ratio = devicePixelRatio || 1;
    const size = (wide - left) / columns, height = Math.max(tall * rows, 24) + 20;
    canvas.width = wide * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${wide}px`;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const values = found.measures[measure], known = values.filter((v) => v !== null);
    const least = known.reduce((a, b) => Math.min(a, b), Infinity), most = known.reduce((a, b) => Math.max(a, b), 0);
    const low = rgb(colour("--heat-0")), high = rgb(colour("--heat-1"));
    legend.textContent = `${time(least)} (light) to ${time(most)} (dark)`;
    for (let i = 0; i < rows; i += 1) for (let j = 0; j < columns; j += 1) {
      const value = values[i * columns + j];
      const share = value === null ? 0 : (value - least) / Math.max(1, most - least);
      pen.fillStyle = value === null ? colour("--track") : `rgb(${low.map((one, k) => Math.round(one + (high[k] - one) * share)).join(" ")})`;
      pen.fillRect(left + j * size, i * tall, Math.max(1, size - (size > 6 ? 1 : 0)), Math.max(1, tall - (tall > 6 ? 1 : 0)));
    }
    pen.fillStyle = colour("--soft");
    pen.font = "11px system-ui, sans-serif";
    const every = Math.max(1, Math.ceil(16 / tall));
    for (let i = 0; i < rows; i += every) pen.fillText(String(found.ranks[i]), 4, i * tall + Math.min(tall, 14) - 2);
    const across = Math.max(1, Math.ceil(44 / size));
    for (let j = 0; j < columns; j += across) pen.fillText(found.by === "window" ? time(found.first_ns[j], 2) : String(found.columns[j]), left + j * size + 2, height - 5);
    pen.strokeStyle = colour("--critical");
    pen.lineWidth = 2;
    pen.strokeRect(left + column * size, row * tall, Math.max(3, size), Math.max(3, tall));
    const value = values[cell()];
    said.textContent = `Rank ${found.ranks[row]}, ${found.labels?.[column] ?? `${found.by} ${found.columns[column]}`}: ${names.map((name) => `${name} ${time(found.measures[name][cell()])}`).join(", ")}${value === null ? " (not recorded)" : ""}. Enter or a double click shows it in the timeline.`;
  }

  function pointed(event) {
    const box = canvas.getBoundingClientRect(), size = (box.width - left) / columns;
    column = Math.min(columns - 1, Math.max(0, Math.floor((event.clientX - box.left - left) / size)));
    row = Math.min(rows - 1, Math.max(0, Math.floor((event.clientY - box.top) / tall)));
    draw();
  }

  const shown = () => { if (found.first_ns[cell()] !== null) go([found.ranks[row]], [found.first_ns[cell()], found.last_ns[cell()]]); };
  canvas.addEventListener("click", pointed);
  canvas.addEventListener("dblclick", (event) => { pointed(event); shown(); });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Enter") shown();
    if (!move) return;
    event.preventDefault();
    row = Math.min(rows - 1, Math.max(0, row + move[0]));
    column = Math.min(columns - 1, Math.max(0, column + move[1]));
    draw();
  });
  const about = found.by !== "call" ? `${count(columns)} ${found.by}s. Waiting is communication that nothing hides, and time without work.`
    : `${columns < found.calls ? `${count(columns)} of ${count(found.calls)} calls, those whose members arrive farthest apart` : `${count(columns)} calls`}. Late is after the first member, waits is until the last one.`;
  new ResizeObserver(draw).observe(section);
  section.append(el("p", { class: "soft" }, `${count(rows)} ranks, ${about}`));
}

const rgb = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
