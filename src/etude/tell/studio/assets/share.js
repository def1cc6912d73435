// What is shown, as a link or a file.
import { Refused, el, say, tell } from "./dom.js";

export function shareParts(open) {
  const line = open.view === "timeline" ? open.timeline : null;
  const run = 0, ranks = line ? line.ranks : [];
  const link = el("input", { type: "text", readOnly: true, value: location.href, "aria-label": "Link", class: "link" });
  const button = (text, does) => el("button", { type: "button", onclick: () => Promise.resolve(does()).catch((problem) => say(problem.message, true)) }, text);
  return [
    el("p", { class: "soft" }, "The link opens this view while the studio runs. Files open anywhere."),
    el("p", {}, link),
    el("p", { class: "row" },
      button("Copy the link", async () => { link.select(); await navigator.clipboard.writeText(link.value); say("copied"); }),
      line && button("PNG", () => new Promise((done) => { line.canvas.toBlob((blob) => { save(blob, "timeline.png"); done(); }); })),
      line && button("SVG", () => save(new Blob([svg(line)], { type: "image/svg+xml" }), "timeline.svg")),
      line && line.notes.length ? button("Notes", () => save(new Blob([JSON.stringify(line.notes, null, 1)], { type: "application/json" }), "notes.json")) : null,
      button("Offline page", () => file("page", run, [])),
      button(line ? "Perfetto, these ranks" : "Perfetto", () => file("perfetto", run, ranks))),
  ];
}

async function file(kind, run, ranks) {
  say("writing …");
  const found = await fetch("api/share", { method: "POST", body: JSON.stringify({ kind, run, ranks }) });
  if (!found.ok) throw new Refused((await found.json()).problem);
  const name = found.headers.get("x-etude-name");
  save(await found.blob(), name);
  tell(decodeURIComponent(found.headers.get("x-etude-command")), "");
  say(`saved ${name}`);
}

function save(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  window.studio.saved = [name, blob.size];
}

// The pieces in view as a drawing; names are text nodes, so that they are escaped when it is written.
export function svg(line) {
  const space = "http://www.w3.org/2000/svg", tall = Math.min(line.height, line.seen);
  const root = document.createElementNS(space, "svg");
  const put = (tag, given, text) => {
    const made = document.createElementNS(space, tag);
    for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "�");
    root.append(made);
  };
  for (const [name, value] of Object.entries({ width: line.width, height: tall, viewBox: `0 0 ${line.width} ${tall}`, "font-family": "sans-serif", "font-size": 11 })) root.setAttribute(name, value);
  put("rect", { width: line.width, height: tall, fill: line.ink.card });
  line.each((row, x, y, wide, high, sort, name) => {
    put("rect", { x: x.toFixed(1), y: y.toFixed(1), width: wide.toFixed(1), height: high.toFixed(1), fill: line.ink.sorts[sort] });
    if (wide > 44 && name) put("text", { x: (x + 3).toFixed(1), y: (row + 12).toFixed(1), fill: "#fff" }, name.slice(0, Math.floor(wide / 6)));
  });
  for (const [y, text] of line.labels()) put("text", { x: 7, y: (y + 12).toFixed(1), fill: line.ink.ink }, text);
  return new XMLSerializer().serializeToString(root);
}
