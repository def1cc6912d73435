// The studio: tabs, what is open, and what the link says.
// A view is loaded when it is first shown.
import { $, ask, el, say, tell } from "./dom.js";
import { shareParts } from "./share.js";
import * as state from "./state.js";
import { Timeline } from "./timeline.js";

const RUN_VIEWS = {
  timeline: ["Timeline", showTimeline],
  overview: ["Overview", async (place) => (await import("./overview.js")).overview(place, { run: 0, about: open.about.runs[0], state, go: leadTo })],
  ask: ["Ask", async (place) => (await import("./ask.js")).questions(place, { run: 0, state })],
  change: ["Change", async (place) => (await import("./change.js")).change(place, { run: 0, state, showAfter })],
  compare: ["Compare", showPair],
  plans: ["Plans", async (place) => (await import("./plans.js")).plans(place, { state })],
};
// What another verb wrote: no trace, so no simulation.
const FOLDER_VIEWS = {
  charts: ["Charts", async (place) => (await import("./charts.js")).charts(place, { run: 0, state, about: open.about.runs[0], showQuery })],
  timeline: ["Timeline", showTimeline],
  page: ["Page", showPage],
  ask: RUN_VIEWS.ask,
};
let VIEWS = RUN_VIEWS;
const KEYS = [["← →  or A D", "pan"], ["+ −  or W S", "zoom"], ["Home", "the whole run"], ["↑ ↓", "choose a row"], ["[ ]", "previous, next slice of the row"],
  ["Enter", "what is at the left edge of the row"], ["/", "search a name; Enter or N: the next one"], ["M", "mark; two marks measure a range"], ["C", "the critical path"], ["F", "flows between ranks"], ["T", "notes"], ["Esc", "clear"],
  ["1 … 9", "views"], ["Shift + drag", "select a range"], ["Ctrl + wheel", "zoom at the pointer"]];
const open = { about: null, view: null, timeline: null };
window.studio = open;

function theme(wanted) {
  const usual = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = wanted || usual;
}

// Whose times are shown: those of the program, or those under the profiler.
async function timesOf(first) {
  if (!first.program || state.get("times") !== "recorded") return { number: 0, run: first };
  say("reading the times under the profiler …");
  return ask("recorded", { run: 0 });
}

function timesSwitch() {
  const box = el("select", { "aria-label": "Times", title: "Times of the program, or as recorded under the profiler", onchange: () => { state.set({ times: box.value === "recorded" ? "recorded" : undefined, timeline: { ranks: open.timeline.ranks } }); show("timeline"); } },
    ["program", "recorded"].map((name) => el("option", { value: name, selected: name === state.get("times", "program") }, `${name} times`)));
  return box;
}

async function showTimeline(place) {
  const { runs, sorts } = open.about;
  const { number, run: one } = await timesOf(runs[0]);
  one.tell = tell;
  if (runs[0].program) one.times = timesSwitch;
  say("");
  open.timeline = new Timeline({ run: number, about: one, sorts, state: state.get("timeline", {}), hear: (now) => state.set({ timeline: now }) });
  place.append(open.timeline.element);
  await open.timeline.start();
  tell(one.command || `etude studio ${one.words}`, one.python);
}

function showPage(place) {
  place.append(el("iframe", { src: "page/0", title: "Report", class: "page" }));
  tell(open.about.runs[0].command, open.about.runs[0].python);
}

// A query of a chart, to be changed.
async function showQuery(sql) {
  state.set({ sql });
  await show("ask");
}

// A finding, or a cell of the map: its ranks and its window in the timeline.
async function leadTo(ranks, [first, last]) {
  await show("timeline");
  await open.timeline.show(ranks, first, last);
}

// Before and after the knobs, as two timelines.
async function showAfter(knobs) {
  state.set({ knobs, pair: "change" });
  await show("compare");
}

async function showPair(place) {
  const { runs, sorts } = open.about;
  const two = runs.length > 1 && state.get("pair") !== "change";
  if (!two) { say("simulating both …"); tell("", ""); }
  const pair = two ? { numbers: [0, 1], runs } : await ask("pair", { run: 0, state: state.get("knobs", {}) });
  for (const one of pair.runs) one.tell = tell;
  say("");
  const { compare } = await import("./compare.js");
  await compare(place, { ...pair, sorts, state });
}

async function show(name) {
  const known = VIEWS[name] ? name : Object.keys(VIEWS)[0];
  for (const tab of $("#tabs").children) {
    const chosen = tab.dataset.view === known;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
  }
  open.view = known;
  state.set({ view: known === Object.keys(VIEWS)[0] ? undefined : known });
  const place = $("#view");
  place.replaceChildren();
  place.className = `view-${known}`;
  say("");
  try {
    await VIEWS[known][1](place);
  } catch (problem) {
    place.append(el("p", { class: "empty" }, problem.message));
    if (!problem.message) throw problem;
  }
  document.documentElement.dataset.ready = "true";
}

function keys(event) {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const names = Object.keys(VIEWS);
  const tab = event.target.getAttribute?.("role") === "tab";
  if (tab && ["ArrowLeft", "ArrowRight"].includes(event.key)) {
    const at = names.indexOf(open.view) + (event.key === "ArrowRight" ? 1 : -1);
    show(names[(at + names.length) % names.length]).then(() => $(`[data-view="${open.view}"]`).focus());
  } else if (/^[1-9]$/.test(event.key) && names[Number(event.key) - 1]) show(names[Number(event.key) - 1]);
  else if (event.key === "?") help();
}

function help() {
  const rows = KEYS.flatMap(([key, what]) => [el("dt", {}, key), el("dd", {}, what)]);
  dialog("Keys", el("dl", { class: "keys" }, rows));
}

function dialog(title, ...content) {
  const box = $("#dialog");
  const close = el("button", { type: "button", onclick: () => box.close() }, "Close");
  box.replaceChildren(el("h2", {}, title), ...content.flat(), close);
  box.showModal();
}

async function start() {
  state.read();
  theme(state.get("theme"));
  open.about = await ask("about");
  const [first] = open.about.runs;
  if (first.kind !== "run") VIEWS = Object.fromEntries(Object.entries(FOLDER_VIEWS).filter(([name]) => (name !== "timeline" || first.slices) && (name !== "page" || first.page)));
  const names = open.about.runs.map((one) => one.path.split("/").filter(Boolean).pop() || one.name);
  $("#run-name").textContent = names.join("  →  ");
  document.title = `${names.join(" → ")} · Etude studio`;
  $("#tabs").append(...Object.entries(VIEWS).map(([name, [label]]) => el("button", { type: "button", role: "tab", "data-view": name, onclick: () => show(name) }, label)));
  $("#theme").addEventListener("click", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    state.set({ theme: next });
    theme(next);
    open.timeline?.draw();
    document.dispatchEvent(new Event("etude-theme"));
  });
  $("#share").addEventListener("click", () => dialog("Share", shareParts(open)));
  $("#help").addEventListener("click", help);
  addEventListener("keydown", keys);
  state.onMove(() => { theme(state.get("theme")); show(state.get("view")); });
  await show(state.get("view"));
}

start().catch((problem) => { $("#view").append(el("p", { class: "empty" }, problem.message)); document.documentElement.dataset.ready = "true"; });
