// Plans of a model as points: memory against step, simulated one after the other; those that nothing beats are ringed.
import { ask, colour, el, fill, percent, say, table, tell, time } from "./dom.js";

const AXES = ["tp", "pp"];

export async function plans(place, given) {
  const known = await ask("catalogue");
  const now = { model: "llama3-8b", system: "dgx-h100", gpus: 16, global_batch: 64, seq: 4096, zero: 1, ...given.state.get("plan", {}) };
  const points = [];
  let turn = 0;
  const canvas = el("canvas", { tabIndex: 0, role: "img", "aria-label": "Plans: memory against the time of a step. Arrows choose one." });
  const about = el("div", { class: "picked", "aria-live": "polite" }), list = el("div", { class: "result" });
  const field = (name, label, made) => el("label", { class: "knob" }, el("span", {}, label), made);
  const choice = (name, of) => el("select", { onchange: (event) => { now[name] = event.target.value; } }, of.map((one) => el("option", { value: one, selected: one === now[name] }, one)));
  const number = (name) => el("input", { type: "number", min: 1, value: now[name], "data-plan": name, onchange: (event) => { now[name] = Math.max(1, Math.round(Number(event.target.value)) || 1); } });
  const form = el("section", { class: "knobs" }, el("h2", {}, "Plans"), field("model", "Model", choice("model", known.models)), field("system", "System", choice("system", known.systems)),
    field("gpus", "Devices", number("gpus")), field("global_batch", "Sequences of a step", number("global_batch")), field("seq", "Tokens of a sequence", number("seq")), field("zero", "ZeRO stage", number("zero")),
    el("button", { type: "button", class: "main", onclick: go }, "Simulate the plans"));
  place.append(el("div", { class: "split changes" }, form, el("section", {}, el("h2", {}, "Memory against step"), canvas, about, list)));
  let chosen = 0;

  async function go() {
    const mine = (turn += 1);
    given.state.set({ plan: now });
    points.length = 0;
    place.dataset.ready = "false";
    const sizes = [1, 2, 4, 8, 16].filter((one) => one <= now.gpus);
    const tries = sizes.flatMap((tp) => sizes.map((pp) => ({ tp, pp }))).filter(({ tp, pp }) => tp <= 8 && now.gpus % (tp * pp) === 0);
    for (const [at, axes] of tries.entries()) {
      say(`plan ${at + 1} of ${tries.length}`);
      const one = await ask("plan", { ...now, ...axes });
      if (mine !== turn || !place.isConnected) return;
      points.push(one);
      draw();
    }
    say(`${points.filter((one) => one.step_ns).length} of ${tries.length} plans simulated`);
    place.dataset.ready = "true";
  }

  const good = () => points.filter((one) => one.step_ns);
  const beaten = (one) => good().some((other) => other !== one && other.step_ns <= one.step_ns && other.memory_bytes <= one.memory_bytes);
  const words = (one) => AXES.map((axis) => `${axis} ${one.axes[axis] || 1}`).join(" × ");

  function draw() {
    const all = good(), wide = Math.max(260, canvas.parentElement.clientWidth - 40), tall = 300, ratio = devicePixelRatio || 1;
    canvas.width = wide * ratio; canvas.height = tall * ratio;
    canvas.style.width = `${wide}px`; canvas.style.height = `${tall}px`;
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "11px system-ui, sans-serif";
    const most = [Math.max(1, ...all.map((one) => one.step_ns)) * 1.08, Math.max(1, ...all.map((one) => one.memory_bytes)) * 1.1];
    const at = (one) => [48 + (one.step_ns / most[0]) * (wide - 70), tall - 28 - (one.memory_bytes / most[1]) * (tall - 44)];
    pen.strokeStyle = colour("--line");
    pen.strokeRect(48, 8, wide - 60, tall - 36);
    pen.fillStyle = colour("--soft");
    pen.fillText(`step, up to ${time(most[0], 3)}`, wide - 130, tall - 10);
    pen.fillText(`memory, up to ${(most[1] / 1e9).toFixed(1)} GB`, 52, 22);
    const front = all.filter((one) => !beaten(one)).sort((a, b) => a.step_ns - b.step_ns);
    pen.strokeStyle = colour("--soft");
    pen.beginPath();
    front.forEach((one, number) => { const [x, y] = at(one); if (number) pen.lineTo(x, y); else pen.moveTo(x, y); });
    pen.stroke();
    all.forEach((one, number) => {
      const [x, y] = at(one);
      pen.beginPath();
      pen.arc(x, y, 6, 0, 7);
      pen.fillStyle = colour(one.fits ? "--compute" : "--communication");
      pen.fill();
      if (!beaten(one)) { pen.strokeStyle = colour("--ink"); pen.lineWidth = 2; pen.stroke(); pen.lineWidth = 1; }
      if (number === chosen) { pen.strokeStyle = colour("--critical"); pen.strokeRect(x - 9, y - 9, 18, 18); }
      pen.fillStyle = colour("--soft");
      pen.fillText(words(one), Math.min(x + 10, wide - 74), y + 4);
    });
    canvas.places = all.map(at);
    const rows = [...all].sort((a, b) => a.step_ns - b.step_ns);
    fill(list, table(["plan", "step", "memory", "MFU", "fits", "nothing beats it"], rows.map((one) => [words(one), time(one.step_ns), `${(one.memory_bytes / 1e9).toFixed(1)} GB`, percent(one.mfu), one.fits ? "yes" : "no", beaten(one) ? "" : "yes"]), { pick: (number) => pick(all.indexOf(rows[number])) }),
      points.filter((one) => one.problem).map((one) => el("p", { class: "soft" }, `${words(one)}: ${one.problem}`)));
  }

  function pick(number) {
    chosen = Math.min(Math.max(number, 0), good().length - 1);
    const one = good()[chosen];
    if (!one) return;
    tell(one.command, one.python);
    fill(about, el("p", {}, el("b", {}, words(one)), `: ${time(one.step_ns)} a step, ${(one.memory_bytes / 1e9).toFixed(2)} GB, ${Math.round(one.tokens_per_s_per_gpu).toLocaleString("en-US")} tokens/s per device${one.fits ? "" : "; it does not fit the memory"}.`));
    draw();
  }

  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    const far = (canvas.places || []).map(([x, y]) => Math.hypot(x - event.clientX + box.left, y - event.clientY + box.top));
    if (far.length) pick(far.indexOf(Math.min(...far)));
  });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (by) { event.preventDefault(); pick(chosen + by); }
  });
  if (given.state.get("plan")) await go(); else draw();
}
