// Knobs, and the step where they are; the newest state is asked for when the last answer is there.
import { ask, count, el, fill, percent, say, tell, time } from "./dom.js";

export async function change(place, given) {
  const { run, state, showAfter } = given;
  const known = await ask("knobs", { run });
  let now = state.get("knobs", {}), busy = false, again = false;
  const answer = el("section", { class: "answer", "aria-live": "polite" }, el("h2", {}, "The step"), el("p", { class: "soft" }, "Simulating …"));
  const panel = el("section", { class: "knobs" }, el("h2", {}, "Knobs"));
  const edits = el("textarea", { rows: 3, spellcheck: false, "aria-label": "More edits, one a line", placeholder: "speed op=aten::mm by=1.3\nmerge s=2 group=dp", value: (now.edits || []).join("\n") });

  function put(name, value) {
    now = { ...now, [name]: value };
    const usual = value === "" || value === false || value === undefined || (typeof value === "number" && value === 1 && name !== "rank") || (Array.isArray(value) && !value.length);
    if (usual) delete now[name];
    state.set({ knobs: Object.keys(now).length ? now : undefined });
    go();
  }

  async function go() {
    if (busy) { again = true; return; }
    busy = true;
    place.dataset.ready = "false";
    const begun = performance.now();
    try {
      const found = await ask("change", { run, state: now });
      draw(found, performance.now() - begun);
    } catch (problem) {
      fill(answer, el("h2", {}, "The step"), el("p", { class: "empty bad" }, problem.message));
    }
    busy = false;
    if (again) { again = false; go(); } else place.dataset.ready = "true";
  }

  function draw(found, took) {
    tell(found.command, found.python);
    say(`simulated in ${time(took * 1e6, 3)}`);
    const { before, after } = found;
    const gain = before.makespan_ns / after.makespan_ns;
    const word = Math.abs(gain - 1) < 1e-9 ? "as before" : gain > 1 ? `${percent(1 - 1 / gain)} shorter` : `${percent(1 / gain - 1)} longer`;
    const most = Math.max(before.step_ns, after.step_ns);
    const parts = [["compute", "compute_ns"], ["communication", "exposed_comm_ns"], ["idle", "idle_ns"]];
    const bar = (one) => el("span", { class: "bar" }, parts.map(([sort, key]) => el("i", { class: `s-${sort}`, title: `${sort} ${time((one.mean[key] || 0) / one.steps)}`, style: { width: `${(100 * (one.mean[key] || 0)) / one.steps / most}%` } })));
    fill(answer, el("h2", {}, "The step"),
      el("div", { class: "cards" },
        el("div", { class: "card" }, el("div", { class: "label" }, "before"), el("div", { class: "value", id: "before" }, time(before.step_ns)), el("div", { class: "note" }, `on ${found.system}`)),
        el("div", { class: "card" }, el("div", { class: "label" }, "after"), el("div", { class: "value", id: "after", "data-ns": String(after.makespan_ns) }, time(after.step_ns)), el("div", { class: "note", id: "gain" }, word))),
      el("div", { class: "bars" }, el("span", { class: "name" }, "before"), bar(before), el("span", { class: "sum" }, time(before.step_ns)), el("span", { class: "name" }, "after"), bar(after), el("span", { class: "sum" }, time(after.step_ns))),
      el("ul", { class: "legend" }, [["compute", "compute"], ["communication", "communication that nothing hides"], ["idle", "idle"]].map(([sort, text]) => el("li", {}, el("i", { class: `dot s-${sort}` }), text))),
      el("p", { class: "soft" }, `Both are simulated, ${count(after.steps)} ${after.steps === 1 ? "step" : "steps"}; parts are means over the ranks.`),
      el("div", { class: "bar" }, el("button", { type: "button", onclick: () => showAfter(now) }, "Show the timeline after"), el("button", { type: "button", onclick: tornado }, "What matters most"), el("button", { type: "button", onclick: files }, "Files and commands")),
      box, notes(found));
    last = found;
  }

  let last = null;
  const box = el("div", { class: "more" });
  const notes = (found) => (found.notes.length ? el("ul", { class: "notes soft" }, found.notes.slice(0, 12).map((one) => el("li", {}, one))) : null);

  // Each knob alone, twice as good: how much shorter the step is.
  async function tornado() {
    const tries = known.knobs.filter((one) => one.kind === "scale" && one.name !== "slow").map((one) => [one.label, { [one.name]: one.name === "latency" ? 0.5 : 2 }]);
    tries.push(...known.knobs.filter((one) => one.kind === "switch").map((one) => [one.label, { [one.name]: true }]));
    const rows = [];
    for (const [label, alone] of tries) {
      try {
        const found = await ask("change", { run, state: { ...alone, ...(now.system ? { system: now.system } : {}) } });
        rows.push([label, 1 - found.after.makespan_ns / found.before.makespan_ns, alone]);
      } catch (problem) { rows.push([`${label}: ${problem.message}`, 0, null]); }
      rows.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
      const most = Math.max(...rows.map((row) => Math.abs(row[1])), 1e-6);
      fill(box, el("h3", {}, "What matters most: each alone, twice as good"), el("div", { class: "bars tornado" }, rows.flatMap(([name, gain]) => [
        el("span", { class: "name", title: name }, name), el("span", { class: "bar" }, el("i", { class: gain >= 0 ? "s-compute" : "s-communication", style: { width: `${(100 * Math.abs(gain)) / most}%` } })),
        el("span", { class: "sum" }, `${percent(Math.abs(gain))} ${gain >= 0 ? "shorter" : "longer"}`)])));
    }
  }

  async function files() {
    const parts = [el("h3", {}, "The same on the command line"), ...last.commands.map((line) => el("pre", {}, line))];
    for (const [name, text] of Object.entries(last.files)) {
      const link = el("a", { href: URL.createObjectURL(new Blob([text], { type: "text/plain" })), download: name }, name);
      parts.push(el("p", {}, link, el("span", { class: "soft" }, " is read as "), el("code", {}, `what-if/${name}`)));
    }
    if (known.write) {
      const name = el("input", { type: "text", value: "what-if", "aria-label": "Name" });
      parts.push(el("p", {}, name, " ", el("button", { type: "button", onclick: async () => {
        try { say(`wrote ${(await ask("save", { run, state: now, name: name.value })).written}`); } catch (problem) { say(problem.message, true); }
      } }, "Save")));
    }
    fill(box, ...parts);
  }

  const names = Object.fromEntries(known.knobs.map((one) => [one.name, one]));
  const systems = el("select", { "aria-label": "System", onchange: () => {
    const { level, ...next } = { ...now, system: systems.value }; // its levels are others
    if (next.system === known.systems[0]) delete next.system;
    state.set({ knobs: Object.keys(next).length ? next : undefined });
    fill(place);
    change(place, given);
  } }, known.systems.map((one) => el("option", { value: one, selected: one === (now.system || known.systems[0]) }, one)));
  panel.append(el("label", { class: "knob" }, el("span", {}, "System"), systems));
  for (const one of known.knobs) panel.append(knob(one, now, put, known.ranks, () => known.levels[now.system || known.systems[0]] || []));
  edits.addEventListener("change", () => put("edits", edits.value.split("\n").map((line) => line.trim()).filter(Boolean)));
  panel.append(el("label", { class: "knob wide" }, el("span", {}, "More edits"), edits),
    el("button", { type: "button", onclick: () => { state.set({ knobs: undefined }); fill(place); change(place, given); } }, "As it was"));
  place.append(el("div", { class: "split changes" }, panel, answer));
  await go();
  return names;
}

function knob(one, now, put, ranks, levels) {
  const help = el("span", { class: "soft doc" }, one.doc);
  if (one.kind === "switch") {
    const box = el("input", { type: "checkbox", checked: now[one.name] === true, "data-knob": one.name, onchange: () => put(one.name, box.checked) });
    return el("label", { class: "knob" }, el("span", {}, box, " ", one.label), help);
  }
  if (one.name === "level") one.of = ["", ...levels()];
  if (one.kind === "choice") {
    const box = el("select", { "data-knob": one.name, onchange: () => put(one.name, box.value) }, one.of.map((value) => el("option", { value, selected: (now[one.name] || "") === value }, value || (one.name === "level" ? "all" : "as the system says"))));
    return el("label", { class: "knob" }, el("span", {}, one.label), box, help);
  }
  const low = Math.log2(one.least), high = Math.log2(one.most), value = now[one.name] ?? 1;
  const number = el("input", { type: "number", min: one.least, max: one.most, step: "any", value, "aria-label": `${one.label}, times`, "data-knob": one.name });
  const slider = el("input", { type: "range", min: low, max: high, step: 0.05, value: Math.log2(value), "aria-label": one.label, "data-slider": one.name });
  slider.addEventListener("input", () => { const next = Number((2 ** Number(slider.value)).toPrecision(3)); number.value = next; put(one.name, Math.abs(Math.log2(next)) < 0.02 ? 1 : Math.min(one.most, Math.max(one.least, next))); });
  number.addEventListener("change", () => { const next = Math.min(one.most, Math.max(one.least, Number(number.value) || 1)); number.value = next; slider.value = Math.log2(next); put(one.name, next); });
  const rank = one.name === "slow" ? el("label", { class: "soft" }, "rank ", el("input", { type: "number", class: "rank", min: 0, max: ranks - 1, value: now.rank || 0, "data-knob": "rank", onchange: (event) => put("rank", Math.max(0, Math.round(Number(event.target.value)) || 0)) })) : null;
  return el("div", { class: "knob" }, el("span", {}, one.label), el("span", { class: "turn" }, slider, number, "×"), rank, help);
}
