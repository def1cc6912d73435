// What is shown, as the part of the address behind `#`: a link opens the same view again.

let now = {};
const heard = [];

export function read() {
  try { now = JSON.parse(decodeURIComponent(location.hash.slice(1))) || {}; } catch { now = {}; }
  if (typeof now !== "object" || Array.isArray(now)) now = {};
  return now;
}

export const get = (name, usual) => (name in now ? now[name] : usual);

export function set(changes) {
  now = { ...now, ...changes };
  for (const [name, value] of Object.entries(now)) if (value === undefined || value === null) delete now[name];
  history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(now))}`);
}

export function onMove(hear) { heard.push(hear); }

addEventListener("hashchange", () => { read(); for (const hear of heard) hear(); });
