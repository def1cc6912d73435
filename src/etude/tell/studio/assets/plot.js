// A small plot on a canvas: points, steps or a band of windows, with axes and the nearest value under the pointer.
import { colour, el, short } from "./dom.js";

const COLOURS = ["--compute", "--communication", "--memory", "--host", "--copy", "--other"];
const LEFT = 58, BOTTOM = 30, TOP = 8;

export const number = (value) => (value === null || !Number.isFinite(value) ? "–" : Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-3) ? value.toExponential(2) : Number(value.toPrecision(4)).toLocaleString("en-US", { maximumFractionDigits: 6 }));

// `given`: series (name -> x, y and for windows low, high), form, names of the two columns.
export function plot(given) {
  const { series, form, columns, tall = 220 } = given;
  const canvas = el("canvas", { role: "img", tabIndex: 0, "aria-label": `${columns[1]} against ${columns[0]}` });
  const said = el("p", { class: "soft said", "aria-live": "polite" });
  const box = el("div", { class: "plot" }, canvas, said);
  const names = Object.keys(series), all = Object.values(series);
  const xs = all.flatMap((one) => [least(one.x), most(one.x)]), ys = all.flatMap((one) => [least(one.low ?? one.y), most(one.high ?? one.y)]);
  const x0 = least(xs), x1 = most(xs) > x0 ? most(xs) : x0 + 1, y0 = Math.min(0, least(ys)), y1 = most(ys) > y0 ? most(ys) * 1.12 : y0 + 1;
  let wide = 0, chosen = null;

  const at = (x, y) => [LEFT + ((x - x0) / (x1 - x0)) * (wide - LEFT - 12), TOP + (1 - (y - y0) / (y1 - y0)) * (tall - TOP - BOTTOM)];

  function draw() {
    if (!box.isConnected) { document.removeEventListener("etude-theme", draw); return; }
    wide = Math.max(220, box.clientWidth);
    const ratio = devicePixelRatio || 1, pen = canvas.getContext("2d");
    canvas.width = wide * ratio; canvas.height = tall * ratio;
    canvas.style.width = `${wide}px`; canvas.style.height = `${tall}px`;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    axes(pen);
    names.forEach((name, number_) => line(pen, series[name], colour(COLOURS[number_ % COLOURS.length])));
    if (chosen) {
      const [x, y] = at(chosen.x, chosen.y);
      pen.strokeStyle = colour("--critical"); pen.lineWidth = 2;
      pen.strokeRect(x - 5, y - 5, 10, 10); pen.lineWidth = 1;
    }
  }

  function axes(pen) {
    pen.font = "11px system-ui, sans-serif";
    pen.strokeStyle = colour("--line");
    pen.fillStyle = colour("--soft");
    for (const value of ticks(y0, y1, 4)) { const [, y] = at(x0, value); pen.fillStyle = colour("--line"); pen.fillRect(LEFT, y, wide - LEFT - 12, 1); pen.fillStyle = colour("--soft"); pen.textAlign = "right"; pen.fillText(number(value), LEFT - 5, y + 4); }
    pen.textAlign = "center";
    for (const value of ticks(x0, x1, Math.max(2, wide / 130))) pen.fillText(number(value), Math.min(at(value, y0)[0], wide - 20), tall - 14);
    pen.textAlign = "left";
    pen.strokeRect(LEFT, TOP, wide - LEFT - 12, tall - TOP - BOTTOM);
    pen.fillText(short(columns[1], 40), LEFT + 5, TOP + 12);
    pen.textAlign = "right";
    pen.fillText(short(columns[0], 40), wide - 14, tall - 2);
    pen.textAlign = "left";
  }

  function line(pen, one, ink) {
    pen.fillStyle = pen.strokeStyle = ink;
    if (one.low) {
      pen.globalAlpha = 0.3;
      pen.beginPath();
      one.x.forEach((x, i) => { const [a, b] = at(x, one.high[i]); pen.lineTo(a, b); });
      for (let i = one.x.length - 1; i >= 0; i -= 1) { const [a, b] = at(one.x[i], one.low[i]); pen.lineTo(a, b); }
      pen.fill();
      pen.globalAlpha = 1;
    }
    if (form === "points" && !one.low) { one.x.forEach((x, i) => { const [a, b] = at(x, one.y[i]); pen.fillRect(a - 1.5, b - 1.5, 3, 3); }); return; }
    pen.beginPath();
    let before = null;
    one.x.forEach((x, i) => { const [a, b] = at(x, one.y[i]); if (form === "steps" && before !== null) pen.lineTo(a, before); pen.lineTo(a, b); before = b; });
    pen.stroke();
  }

  function near(px, py) {
    let best = Infinity;
    for (const name of names) series[name].x.forEach((x, i) => {
      const [a, b] = at(x, series[name].y[i]), far = (a - px) ** 2 + (b - py) ** 2;
      if (far < best) { best = far; chosen = { name, i, x, y: series[name].y[i], one: series[name] }; }
    });
    tell();
  }

  function tell() {
    if (!chosen) return;
    const range = chosen.one.low ? ` (window: ${number(chosen.one.low[chosen.i])} to ${number(chosen.one.high[chosen.i])})` : "";
    said.textContent = `${chosen.name ? `${short(chosen.name, 60)}: ` : ""}${columns[0]} ${number(chosen.x)}, ${columns[1]} ${number(chosen.y)}${range}`;
    draw();
  }

  canvas.addEventListener("pointermove", (event) => { const to = canvas.getBoundingClientRect(); near(event.clientX - to.left, event.clientY - to.top); });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by || !names.length) return;
    event.preventDefault();
    event.stopPropagation();
    const one = series[chosen?.name ?? names[0]], i = Math.min(Math.max((chosen?.i ?? -1) + by, 0), one.x.length - 1);
    if (one.x.length) { chosen = { name: chosen?.name ?? names[0], i, x: one.x[i], y: one.y[i], one }; tell(); }
  });
  if (names.length > 1) box.append(el("ul", { class: "legend" }, names.slice(0, 24).map((name, at_) => el("li", {}, el("i", { class: "dot", style: { background: `var(${COLOURS[at_ % COLOURS.length]})` } }), short(name, 40)))));
  if (all.some((one) => one.low)) box.append(el("p", { class: "soft" }, "More values than are drawn one by one: windows, each with its lowest, middle and highest."));
  new ResizeObserver(draw).observe(box);
  document.addEventListener("etude-theme", draw);
  return box;
}

// Bars of the second column, labelled by the first.
export function bars(labels, values, unit = "") {
  const top = Math.max(...values.map((value) => Math.abs(Number(value) || 0)), 1e-12);
  return el("div", { class: "bars", "aria-label": unit }, unit ? [el("span", { class: "name soft" }), el("span", { class: "soft unit" }, unit), el("span")] : [], labels.flatMap((label, at) => [
    el("span", { class: "name", title: label }, short(label, 60)),
    el("span", { class: "bar" }, el("i", { class: "s-compute", style: { width: `${(100 * Math.abs(Number(values[at]) || 0)) / top}%` } })),
    el("span", { class: "sum" }, number(values[at])),
  ]));
}

const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

function ticks(from, to, many) {
  const rough = (to - from) / many, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * size).find((one) => one >= rough) || size;
  const found = [];
  for (let value = Math.ceil(from / step) * step; value <= to && found.length < 40; value += step) found.push(value);
  return found;
}
